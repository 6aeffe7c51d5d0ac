//! IORING_REGISTER_FILES_UPDATE2: registered files change together with their tags.

use super::prelude::*;

topic!(since: "5.13", source: "io_uring_register(2), io_uring/rsrc.c");

/// `struct io_uring_rsrc_update2`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Update {
    offset: u32,
    resv: u32,
    data: u64,
    tags: u64,
    count: u32,
    resv2: u32,
}

fn call(ring: &Ring, update: &Update) -> i32 {
    let size = size_of::<Update>() as u32;
    ring.register(IORING_REGISTER_FILES_UPDATE2, std::ptr::from_ref(update) as usize, size) as i32
}

fn change<const N: usize>(ring: &Ring, offset: u32, files: [i32; N], tags: [u64; N]) -> i32 {
    let (data, tags) = (address(&files), address(&tags));
    call(ring, &Update { offset, data, tags, count: N as u32, ..Update::default() })
}

/// A ring with four slots, all empty.
fn sparse(cx: &Context) -> Ring {
    let ring = cx.ring(8);
    let resources = [4 | u64::from(IORING_RSRC_REGISTER_SPARSE) << 32, 0, 0, 0];
    assert_eq!(ring.register(IORING_REGISTER_FILES2, address(&resources) as usize, 32), 0);
    ring
}

/// True for each slot that holds an empty pipe, from which READ fails with EAGAIN. False for an empty slot, where READ
/// fails with EBADF.
fn held<const N: usize>(ring: &mut Ring, slots: [i32; N]) -> [bool; N] {
    slots.map(|slot| {
        let read = sqe::read(slot, &mut [0; 1], 0).with(IOSQE_FIXED_FILE).op_flags(libc::RWF_NOWAIT as u32);
        match ring.run(read.data(99)) {
            error if error == -EAGAIN => true,
            error => {
                assert_eq!(error, -EBADF);
                false
            }
        }
    })
}

#[case(since = "5.19")]
fn replaces_and_answers_how_many(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), sparse(cx));
    assert_eq!(change(&ring, 1, [fd(&reader); 2], [0; 2]), 2);
    assert_eq!(held(&mut ring, [0, 1, 2, 3]), [false, true, true, false]);
}

#[case(since = "5.19")]
fn skip_leaves_file_and_tag(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), sparse(cx));
    assert_eq!(change(&ring, 0, [fd(&reader)], [7]), 1);
    let skip = IORING_REGISTER_FILES_SKIP;
    assert_eq!(change(&ring, 0, [skip, fd(&reader)], [0, 8]), 2);
    assert_eq!(held(&mut ring, [0, 1]), [true; 2]);
    assert_eq!(change(&ring, 0, [skip], [9]), -EINVAL, "what is skipped has no tag");
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0), 0);
    assert_eq!(ring.wait_sorted(2), [(7, 0), (8, 0)]);
}

#[case(since = "5.19")]
fn former_tags_are_posted(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), sparse(cx));
    assert_eq!(change(&ring, 2, [fd(&reader)], [7]), 1);
    ring.expect_quiet();
    assert_eq!(change(&ring, 2, [fd(&reader)], [8]), 1);
    assert_eq!(ring.wait_sorted(1), [(7, 0)]);
    ring.expect_quiet();
}

#[case(since = "5.19")]
fn clearing_posts_the_tag(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), sparse(cx));
    assert_eq!(change(&ring, 2, [fd(&reader)], [7]), 1);
    assert_eq!(change(&ring, 2, [-1], [0]), 1);
    assert_eq!(ring.wait_sorted(1), [(7, 0)]);
    assert_eq!(held(&mut ring, [2]), [false]);
}

#[case(since = "5.19")]
fn tag_of_an_empty_slot_is_einval(cx: &Context) {
    let ring = sparse(cx);
    assert_eq!(change(&ring, 0, [-1], [7]), -EINVAL);
    assert_eq!(change(&ring, 0, [-1], [0]), 1);
}

#[case(since = "5.19")]
fn refused_tag_leaves_file_and_tag(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), sparse(cx));
    assert_eq!(change(&ring, 0, [fd(&reader)], [7]), 1);
    assert_eq!(change(&ring, 0, [-1], [8]), -EINVAL);
    ring.expect_quiet();
    assert_eq!(held(&mut ring, [0]), [true]);
}

#[case(since = "5.19")]
fn what_could_be_read_is_done(cx: &Context) {
    let ((reader, _writer), mut ring, memory) = (pipe(), sparse(cx), pages(2));
    protect(&memory[4096..], libc::PROT_NONE);
    memory[4092..4096].copy_from_slice(&fd(&reader).to_ne_bytes());
    let data = address(memory) + 4092;
    assert_eq!(call(&ring, &Update { data, count: 2, ..Update::default() }), 1);
    assert_eq!(held(&mut ring, [0, 1]), [true, false]);
    // The tags end at the end of the page.
    memory[4088..4096].copy_from_slice(&7u64.to_ne_bytes());
    let (files, tags) = ([fd(&reader); 2], address(memory) + 4088);
    assert_eq!(call(&ring, &Update { offset: 2, data: address(&files), tags, count: 2, ..Update::default() }), 1);
    assert_eq!(held(&mut ring, [2, 3]), [true, false]);
    let update = prep(Opcode::FilesUpdate, -1, data, 2, 1);
    memory[4092..4096].copy_from_slice(&fd(&reader).to_ne_bytes());
    assert_eq!(ring.run(update), 1);
}

#[case(since = "5.19")]
fn tags_are_posted_from_the_last_slot(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), sparse(cx));
    assert_eq!(change(&ring, 0, [fd(&reader); 4], [7, 8, 9, 10]), 4);
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0), 0);
    assert_eq!(ring.wait_ordered(4), [(10, 0), (9, 0), (8, 0), (7, 0)]);
}

/// Requests that take a tagged file out of its slot: CLOSE, OPENAT into the slot, FILES_UPDATE.
#[case(since = "5.19")]
fn tag_comes_before_the_request_that_empties_the_slot(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), sparse(cx));
    let clear = [-1];
    let requests = [
        sqe::close(0).file_index(2),
        sqe::openat(libc::AT_FDCWD, c"/", libc::O_RDONLY, 0).file_index(2),
        prep(Opcode::FilesUpdate, -1, address(&clear), 1, 1),
    ];
    for request in requests {
        assert_eq!(change(&ring, 1, [fd(&reader)], [7]), 1);
        ring.go(request.data(1));
        let order: Vec<u64> = ring.wait_ordered(2).iter().map(|cqe| cqe.0).collect();
        assert_eq!(order, [7, 1]);
    }
}

#[case(since = "5.19")]
fn bad_descriptor_counts_what_was_done(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), sparse(cx));
    assert_eq!(change(&ring, 0, [fd(&reader), 9999, fd(&reader)], [0; 3]), 1);
    assert_eq!(held(&mut ring, [0, 1, 2]), [true, false, false]);
    assert_eq!(change(&ring, 0, [9999], [0]), -EBADF);
    assert_eq!(held(&mut ring, [0]), [false], "what was there has gone");
}

#[case(since = "5.19")]
fn arguments_are_checked(cx: &Context) {
    let ((reader, _writer), ring) = (pipe(), sparse(cx));
    let number = fd(&reader);
    let good = Update { data: address(&number), count: 1, ..Update::default() };
    assert_eq!(call(&ring, &good), 1, "without tags");
    for (wrong, error) in [
        (Update { resv: 1, ..good }, EINVAL),
        (Update { resv2: 1, ..good }, EINVAL),
        (Update { count: 0, ..good }, EINVAL),
        (Update { offset: 4, ..good }, EINVAL),
        (Update { count: 5, ..good }, EINVAL),
        (Update { data: bad_address(), ..good }, EFAULT),
        (Update { tags: bad_address(), ..good }, EFAULT),
    ] {
        assert_eq!(call(&ring, &wrong), -error, "{} {} {}", wrong.resv, wrong.offset, wrong.count);
    }
    assert_eq!(ring.register(IORING_REGISTER_FILES_UPDATE2, &raw const good as usize, 24) as i32, -EINVAL);
    assert_eq!(call(&cx.ring(4), &good), -ENXIO, "no table");
}
