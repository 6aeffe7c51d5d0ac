//! READV_FIXED and WRITEV_FIXED: vectors inside one registered buffer.

use super::prelude::*;

topic!(since: "6.15", source: "io_uring_enter(2), io_uring/rw.c");

fn vectored(opcode: Opcode, fd: i32, vectors: &[libc::iovec], off: u64) -> Sqe {
    prep(opcode, fd, address(vectors), vectors.len() as u32, off)
}

/// A ring with one page registered as buffer 0.
fn with_page(cx: &Context) -> (Ring, &'static mut [u8]) {
    let (ring, page) = (cx.ring(4), pages(1));
    assert_eq!(ring.register_buffers(&[iovec_mut(page)]), 0);
    (ring, page)
}

#[case]
fn write_and_read_back(cx: &Context) {
    let (file, (mut ring, page)) = (file("f", b""), with_page(cx));
    page[..6].copy_from_slice(b"abcdef");
    let vectors = [iovec(&page[3..6]), iovec(&page[..3])];
    assert_eq!(ring.run(vectored(Opcode::WritevFixed, fd(&file), &vectors, 0)), 6);
    let (head, tail) = page.split_at_mut(2048);
    let vectors = [iovec_mut(&mut tail[..2]), iovec_mut(&mut head[100..104])];
    assert_eq!(ring.run(vectored(Opcode::ReadvFixed, fd(&file), &vectors, 0)), 6);
    assert_eq!((&page[2048..2050], &page[100..104]), (&b"de"[..], &b"fabc"[..]));
}

#[case]
fn one_vector(cx: &Context) {
    let (file, (mut ring, page)) = (file("f", b"abc"), with_page(cx));
    let vectors = [iovec_mut(&mut page[..3])];
    assert_eq!(ring.run(vectored(Opcode::ReadvFixed, fd(&file), &vectors, 0)), 3);
    assert_eq!(&page[..3], b"abc");
}

#[case]
fn no_vectors(cx: &Context) {
    let (file, (mut ring, _page)) = (file("f", b"abc"), with_page(cx));
    assert_eq!(ring.run(vectored(Opcode::ReadvFixed, fd(&file), &[], 0)), 0);
}

#[case]
fn a_vector_outside_of_the_buffer_is_efault(cx: &Context) {
    let (file, (mut ring, page), mut outside) = (file("f", b"abcdef"), with_page(cx), [0u8; 3]);
    let vectors = [iovec_mut(&mut page[..3]), iovec_mut(&mut outside)];
    assert_eq!(ring.run(vectored(Opcode::ReadvFixed, fd(&file), &vectors, 0)), -EFAULT);
    let over_its_end = libc::iovec { iov_base: page[4095..].as_mut_ptr().cast(), iov_len: 2 };
    assert_eq!(ring.run(vectored(Opcode::ReadvFixed, fd(&file), &[over_its_end], 0)), -EFAULT);
    assert_eq!(&page[..3], &[0; 3]);
}

#[case]
fn a_vector_of_no_bytes(cx: &Context) {
    let (file, (mut ring, page)) = (file("f", b"abcdef"), with_page(cx));
    let (first, rest) = page.split_at_mut(3);
    let vectors = [iovec_mut(&mut first[..0]), iovec_mut(&mut rest[..3])];
    assert_eq!(ring.run(vectored(Opcode::ReadvFixed, fd(&file), &vectors, 0)), -EFAULT);
}

#[case]
fn without_registered_buffers_is_efault(cx: &Context) {
    let (file, mut buffer) = (file("f", b"abcdef"), [0u8; 3]);
    let vectors = [iovec_mut(&mut buffer)];
    assert_eq!(cx.ring(4).run(vectored(Opcode::ReadvFixed, fd(&file), &vectors, 0)), -EFAULT);
}

#[case]
fn a_missing_buffer_is_efault(cx: &Context) {
    let (file, (mut ring, page)) = (file("f", b"abcdef"), with_page(cx));
    let vectors = [iovec_mut(&mut page[..3])];
    assert_eq!(ring.run(vectored(Opcode::ReadvFixed, fd(&file), &vectors, 0).buffer(1)), -EFAULT);
}

#[case]
fn bad_vectors_are_efault(cx: &Context) {
    let (file, (mut ring, _page)) = (file("f", b"abcdef"), with_page(cx));
    assert_eq!(ring.run(prep(Opcode::ReadvFixed, fd(&file), bad_address(), 1, 0)), -EFAULT);
}

#[case]
fn too_many_vectors_is_einval(cx: &Context) {
    let (file, (mut ring, page)) = (file("f", b"abcdef"), with_page(cx));
    let vectors: Vec<_> = (0..1025).map(|place| iovec(&page[place..=place])).collect();
    assert_eq!(ring.run(vectored(Opcode::WritevFixed, fd(&file), &vectors, 0)), -EINVAL);
    assert_eq!(ring.run(vectored(Opcode::WritevFixed, fd(&file), &vectors[..1024], 0)), 1024);
}

#[case]
fn vectors_are_copied_at_submission(cx: &Context) {
    let ((reader, mut writer), (mut ring, page)) = (pipe(), with_page(cx));
    let mut vectors = [iovec_mut(&mut page[..3])];
    ring.go(vectored(Opcode::ReadvFixed, fd(&reader), &vectors, 0));
    ring.expect_quiet();
    vectors[0].iov_base = std::ptr::null_mut();
    std::hint::black_box(&vectors);
    writer.write_all(b"abc").expect("write");
    assert_eq!(ring.wait().res, 3);
    assert_eq!(&page[..3], b"abc");
}

#[case]
fn read_of_a_pipe_waits(cx: &Context) {
    let ((reader, mut writer), (mut ring, page)) = (pipe(), with_page(cx));
    let (first, second) = page.split_at_mut(1);
    let vectors = [iovec_mut(first), iovec_mut(&mut second[..5])];
    ring.go(vectored(Opcode::ReadvFixed, fd(&reader), &vectors, 0));
    ring.expect_quiet();
    writer.write_all(b"abcd").expect("write");
    assert_eq!(ring.wait().res, 4);
    assert_eq!(&page[..4], b"abcd");
}

#[case]
fn async_read(cx: &Context) {
    let (file, (mut ring, page)) = (file("f", b"abcdef"), with_page(cx));
    let vectors = [iovec_mut(&mut page[..3])];
    assert_eq!(ring.run(vectored(Opcode::ReadvFixed, fd(&file), &vectors, 2).with(IOSQE_ASYNC)), 3);
    assert_eq!(&page[..3], b"cde");
}
