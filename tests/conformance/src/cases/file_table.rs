//! PIPE, FILES_UPDATE and FIXED_FD_INSTALL: new descriptors, ordinary or registered.

use super::prelude::*;

topic!(since: "5.6", source: "io_uring_enter(2), io_uring/filetable.c, io_uring/rsrc.c");

const ANY: u32 = IORING_FILE_INDEX_ALLOC as u32;

fn make_pipe(fds: &mut [i32; 2], flags: i32) -> Sqe {
    prep(Opcode::Pipe, 0, address_mut(fds), 0, 0).op_flags(flags as u32)
}

fn passes(ends: [i32; 2]) {
    let (reader, mut writer) = (owned(ends[0], "read end"), std::fs::File::from(owned(ends[1], "write end")));
    writer.write_all(b"abc").expect("write");
    let mut buffer = [0u8; 3];
    std::fs::File::from(reader).read_exact(&mut buffer).expect("read");
    assert_eq!(&buffer, b"abc");
}

#[case(since = "6.16")]
fn pipe_of_descriptors(cx: &Context) {
    let mut ends = [-1; 2];
    assert_eq!(cx.ring(4).run(make_pipe(&mut ends, 0)), 0);
    passes(ends);
}

fn flag(number: i32, command: i32) -> i32 {
    // SAFETY: fcntl(2) with a command that takes no argument.
    unsafe { libc::fcntl(number, command) }
}

#[case(since = "6.16")]
fn pipe_flags(cx: &Context) {
    let (mut ring, mut ends) = (cx.ring(4), [-1; 2]);
    assert_eq!(ring.run(make_pipe(&mut ends, libc::O_CLOEXEC | libc::O_NONBLOCK)), 0);
    assert_eq!(ends.map(|end| flag(end, libc::F_GETFD) & libc::FD_CLOEXEC), [libc::FD_CLOEXEC; 2]);
    assert_eq!(ends.map(|end| flag(end, libc::F_GETFL) & libc::O_NONBLOCK), [libc::O_NONBLOCK; 2]);
    passes(ends);
    assert_eq!(ring.run(make_pipe(&mut ends, libc::O_DIRECT)), 0);
    assert_eq!(ends.map(|end| flag(end, libc::F_GETFD) & libc::FD_CLOEXEC), [0; 2]);
    assert_eq!(flag(ends[1], libc::F_GETFL) & libc::O_DIRECT, libc::O_DIRECT);
    passes(ends);
}

#[case]
fn pipe_unknown_flag_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(make_pipe(&mut [-1; 2], libc::O_APPEND)), -EINVAL);
}

#[case]
fn pipe_with_unused_fields_is_einval(cx: &Context) {
    let (mut ring, mut ends) = (cx.ring(4), [-1; 2]);
    let good = make_pipe(&mut ends, 0);
    assert_eq!(ring.run(Sqe { fd: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(Sqe { off: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(Sqe { addr3: 1, ..good }), -EINVAL);
}

#[case]
fn pipe_to_a_bad_address_is_efault_and_leaves_nothing_open(cx: &Context) {
    let mut ring = cx.ring(4);
    let next = fd(&memfd());
    assert_eq!(ring.run(prep(Opcode::Pipe, 0, bad_address(), 0, 0)), -EFAULT);
    assert!(!is_open(next) && !is_open(next + 1));
}

fn with_slots(cx: &Context, count: usize) -> Ring {
    let ring = cx.ring(8);
    ring.register_files(&vec![-1; count]);
    ring
}

/// Writes to one slot and reads from another.
fn slots_pass(ring: &mut Ring, reader: i32, writer: i32) {
    let mut buffer = [0u8; 3];
    assert_eq!(ring.run(sqe::write(writer, b"abc", 0).with(IOSQE_FIXED_FILE)), 3);
    assert_eq!(ring.run(sqe::read(reader, &mut buffer, 0).with(IOSQE_FIXED_FILE)), 3);
    assert_eq!(&buffer, b"abc");
}

/// The failed PIPE frees its two slots, the second one last. The search for the next free slot begins there.
#[case(since = "6.16")]
fn pipe_in_slots_to_a_bad_address_moves_the_next(cx: &Context) {
    let (mut ring, mut ends) = (with_slots(cx, 6), [-1; 2]);
    assert_eq!(ring.run(make_pipe(&mut ends, 0).file_index(ANY)), 0);
    let bad = prep(Opcode::Pipe, 0, bad_address(), 0, 0);
    assert_eq!(ring.run(bad.file_index(ANY)), -EFAULT);
    let socket = sqe::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).file_index(ANY);
    assert_eq!(ring.run(socket), 3);
}

#[case(since = "6.16")]
fn pipe_in_free_slots(cx: &Context) {
    let (mut ring, mut ends) = (with_slots(cx, 4), [-1; 2]);
    assert_eq!(ring.run(make_pipe(&mut ends, 0).file_index(ANY)), 0);
    assert_eq!(ends, [0, 1]);
    slots_pass(&mut ring, 0, 1);
    assert_eq!(ring.run(make_pipe(&mut ends, 0).file_index(ANY)), 0);
    assert_eq!(ends, [2, 3]);
}

#[case(since = "6.16")]
fn pipe_in_given_slots(cx: &Context) {
    let (mut ring, mut ends) = (with_slots(cx, 4), [-1; 2]);
    assert_eq!(ring.run(make_pipe(&mut ends, 0).file_index(2)), 0);
    assert_eq!(ends, [1, 2]);
    slots_pass(&mut ring, 1, 2);
}

#[case]
fn pipe_in_slots_close_on_exec_is_einval(cx: &Context) {
    assert_eq!(with_slots(cx, 2).run(make_pipe(&mut [-1; 2], libc::O_CLOEXEC).file_index(ANY)), -EINVAL);
}

#[case]
fn pipe_in_slots_without_a_table_fails(cx: &Context) {
    assert_eq!(cx.ring(4).run(make_pipe(&mut [-1; 2], 0).file_index(1)), -libc::ENXIO);
    assert_eq!(cx.ring(4).run(make_pipe(&mut [-1; 2], 0).file_index(ANY)), -libc::ENFILE, "no slot is free");
}

#[case]
fn pipe_in_slots_beyond_the_table_is_einval(cx: &Context) {
    let mut ring = with_slots(cx, 2);
    assert_eq!(ring.run(make_pipe(&mut [-1; 2], 0).file_index(3)), -EINVAL);
    assert_eq!(ring.run(make_pipe(&mut [-1; 2], 0).file_index(2)), -EINVAL, "the second is beyond");
}

#[case(since = "5.19")]
fn pipe_without_a_free_slot_is_enfile(cx: &Context) {
    let mut ring = with_slots(cx, 1);
    assert_eq!(ring.run(make_pipe(&mut [-1; 2], 0).file_index(ANY)), -libc::ENFILE);
    // The one slot that was free is free again.
    let (reader, _writer) = pipe();
    let mut fds = [fd(&reader)];
    assert_eq!(ring.run(update(&mut fds, ANY)), 1);
}

#[case(since = "6.16")]
fn pipe_async(cx: &Context) {
    let mut ends = [-1; 2];
    assert_eq!(cx.ring(4).run(make_pipe(&mut ends, 0).with(IOSQE_ASYNC)), 0);
    passes(ends);
}

fn update(fds: &mut [i32], first: u32) -> Sqe {
    prep(Opcode::FilesUpdate, -1, address_mut(fds), fds.len() as u32, first.into())
}

#[case]
fn update_replaces_files(cx: &Context) {
    let mut ring = with_slots(cx, 4);
    let (reader, writer) = pipe();
    let mut fds = [fd(&reader), fd(&writer)];
    assert_eq!(ring.run(update(&mut fds, 1)), 2);
    drop((reader, writer));
    slots_pass(&mut ring, 1, 2);
    assert_eq!(ring.run(update(&mut [-1], 2)), 1);
    assert_eq!(ring.run(sqe::write(2, b"abc", 0).with(IOSQE_FIXED_FILE)), -EBADF);
}

#[case(since = "5.19")]
fn update_in_free_slots(cx: &Context) {
    let mut ring = with_slots(cx, 4);
    let (reader, writer) = pipe();
    let mut fds = [fd(&reader), fd(&writer)];
    assert_eq!(ring.run(update(&mut fds, ANY)), 2);
    assert_eq!(fds, [0, 1]);
    slots_pass(&mut ring, 0, 1);
}

#[case(since = "5.19")]
fn update_in_free_slots_of_a_bad_descriptor_is_ebadf(cx: &Context) {
    let mut ring = with_slots(cx, 4);
    let (reader, _writer) = pipe();
    assert_eq!(ring.run(update(&mut [9999], ANY)), -EBADF);
    let mut fds = [fd(&reader), 9999];
    assert_eq!(ring.run(update(&mut fds, ANY)), 1);
    assert_eq!(fds, [0, 9999]);
}

#[case(since = "5.19")]
fn update_in_free_slots_tells_how_many_fit(cx: &Context) {
    let mut ring = with_slots(cx, 1);
    let (reader, writer) = pipe();
    let mut fds = [fd(&reader), fd(&writer)];
    assert_eq!(ring.run(update(&mut fds, ANY)), 1);
    assert_eq!(ring.run(update(&mut [fd(&writer)], ANY)), -libc::ENFILE);
}

#[case]
fn update_without_a_table_is_enxio(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.ring(4).run(update(&mut [fd(&reader)], 0)), -libc::ENXIO);
    assert_eq!(cx.ring(4).run(update(&mut [fd(&reader)], ANY)), -libc::ENXIO);
}

#[case]
fn update_of_nothing_is_einval(cx: &Context) {
    assert_eq!(with_slots(cx, 2).run(update(&mut [], 0)), -EINVAL);
}

#[case]
fn update_beyond_the_table_is_einval(cx: &Context) {
    let mut ring = with_slots(cx, 2);
    assert_eq!(ring.run(update(&mut [-1, -1], 1)), -EINVAL);
    assert_eq!(ring.run(update(&mut [-1], 2)), -EINVAL);
    assert_eq!(ring.run(prep(Opcode::FilesUpdate, -1, 8, u32::MAX, 0)), -EINVAL);
}

#[case]
fn update_bad_descriptor_is_ebadf(cx: &Context) {
    let mut ring = with_slots(cx, 2);
    let (reader, _writer) = pipe();
    assert_eq!(ring.run(update(&mut [9999], 0)), -EBADF);
    assert_eq!(ring.run(update(&mut [fd(&reader), 9999], 0)), 1);
}

#[case]
fn update_bad_address_is_efault(cx: &Context) {
    let mut ring = with_slots(cx, 2);
    assert_eq!(ring.run(prep(Opcode::FilesUpdate, -1, bad_address(), 1, 0)), -EFAULT);
    assert_eq!(ring.run(prep(Opcode::FilesUpdate, -1, bad_address(), 1, ANY.into())), -EFAULT);
}

#[case]
fn update_with_unused_fields_is_einval(cx: &Context) {
    let (mut ring, mut fds) = (with_slots(cx, 2), [-1]);
    assert_eq!(ring.run(update(&mut fds, 0).op_flags(1)), -EINVAL);
    assert_eq!(ring.run(update(&mut fds, 0).file_index(1)), -EINVAL);
    assert_eq!(ring.run(update(&mut fds, 0).with(IOSQE_FIXED_FILE)), -EINVAL);
}

#[case]
fn update_then_read_in_a_chain(cx: &Context) {
    let (mut ring, mut buffer) = (with_slots(cx, 2), [0u8; 3]);
    let file = file("f", b"abc");
    let mut fds = [fd(&file)];
    ring.go_all(&[
        update(&mut fds, 0).with(IOSQE_IO_LINK).data(1),
        sqe::read(0, &mut buffer, 0).with(IOSQE_FIXED_FILE).data(2),
    ]);
    assert_eq!(ring.wait_ordered(2), [(1, 1), (2, 3)]);
}

fn install(slot: i32) -> Sqe {
    Sqe { fd: slot, ..sqe::op(Opcode::FixedFdInstall) }.with(IOSQE_FIXED_FILE)
}

fn with_file(cx: &Context) -> Ring {
    let ring = cx.ring(4);
    ring.register_files(&[fd(&file("f", b"abc")), -1]);
    ring
}

#[case(since = "6.8")]
fn install_makes_a_descriptor(cx: &Context) {
    let mut ring = with_file(cx);
    let next = fd(&memfd());
    let number = ring.run(install(0));
    assert_eq!(number, next, "the lowest that is free");
    let mut text = String::new();
    std::fs::File::from(owned(number, "installed")).read_to_string(&mut text).expect("read");
    assert_eq!(text, "abc");
}

#[case(since = "6.8")]
fn install_close_on_exec(cx: &Context) {
    let mut ring = with_file(cx);
    let (closed, kept) = (ring.run(install(0)), ring.run(install(0).op_flags(IORING_FIXED_FD_NO_CLOEXEC)));
    assert_eq!([closed, kept].map(|number| flag(number, libc::F_GETFD)), [libc::FD_CLOEXEC, 0]);
    drop([closed, kept].map(|number| owned(number, "installed")));
}

#[case]
fn install_of_an_ordinary_descriptor_is_ebadf(cx: &Context) {
    let (file, mut ring) = (file("f", b"abc"), cx.ring(4));
    assert_eq!(ring.run(Sqe { fd: fd(&file), ..sqe::op(Opcode::FixedFdInstall) }), -EBADF);
}

#[case]
fn install_of_an_empty_slot_is_ebadf(cx: &Context) {
    assert_eq!(with_file(cx).run(install(1)), -EBADF);
    assert_eq!(with_file(cx).run(install(7)), -EBADF);
}

#[case]
fn install_unknown_flag_is_einval(cx: &Context) {
    assert_eq!(with_file(cx).run(install(0).op_flags(2)), -EINVAL);
}

#[case]
fn install_with_unused_fields_is_einval(cx: &Context) {
    let mut ring = with_file(cx);
    assert_eq!(ring.run(Sqe { off: 1, ..install(0) }), -EINVAL);
    assert_eq!(ring.run(Sqe { addr: 1, ..install(0) }), -EINVAL);
    assert_eq!(ring.run(Sqe { len: 1, ..install(0) }), -EINVAL);
    assert_eq!(ring.run(Sqe { addr3: 1, ..install(0) }), -EINVAL);
    assert_eq!(ring.run(install(0).buffer(1)), -EINVAL);
    assert_eq!(ring.run(install(0).file_index(1)), -EINVAL);
}

#[case(since = "6.8")]
fn install_async(cx: &Context) {
    let mut ring = with_file(cx);
    let number = ring.run(install(0).with(IOSQE_ASYNC));
    assert!(is_open(number));
    drop(owned(number, "installed"));
}

#[case(since = "5.19")]
fn a_free_slot_is_looked_for_after_the_last_change(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), cx.ring(4));
    ring.register_files(&[-1; 6]);
    let allocated = |ring: &mut Ring| ring.run(sqe::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).file_index(ANY));
    assert_eq!(allocated(&mut ring), 0);
    let update = |ring: &mut Ring, first: u64, files: &[i32]| {
        let sqe = prep(Opcode::FilesUpdate, 0, address(files), files.len() as u32, first);
        assert_eq!(ring.run(sqe), files.len() as i32);
    };
    update(&mut ring, 3, &[fd(&reader)]);
    assert_eq!(allocated(&mut ring), 4, "behind the slot that was filled");
    assert_eq!(allocated(&mut ring), 5);
    update(&mut ring, 3, &[-1]);
    assert_eq!(allocated(&mut ring), 3, "at the slot that was emptied");
    update(&mut ring, 4, &[fd(&writer)]);
    assert_eq!(allocated(&mut ring), 1, "behind a slot whose file was replaced, and from the beginning again");
    assert_eq!(ring.run(sqe::close(0).file_index(1)), 0);
    assert_eq!(allocated(&mut ring), 0, "at the slot that was closed");
}

#[case]
fn install_with_a_personality_is_eperm(cx: &Context) {
    let mut ring = with_file(cx);
    let id = ring.register(IORING_REGISTER_PERSONALITY, 0, 0) as u16;
    assert_eq!(ring.run(Sqe { personality: id, ..install(0) }), -libc::EPERM);
    assert_eq!(ring.run(Sqe { personality: id, op_flags: 2, ..install(0) }), -EINVAL);
}

#[case]
fn allocation_without_a_table_is_enfile(cx: &Context) {
    let (mut ring, socket) = (cx.ring(4), sqe::socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0));
    assert_eq!(ring.run(socket.file_index(ANY)), -libc::ENFILE);
    assert_eq!(ring.run(socket.file_index(1)), -libc::ENXIO);
}

/// This holds whether the slot emptied last is below the range or above it.
#[case(since = "6.0")]
fn allocation_stays_in_its_range(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(8));
    ring.register_files(&[fd(&reader), fd(&reader), -1, -1, -1, -1, fd(&reader), fd(&reader)]);
    let range = [2u32, 4, 0, 0];
    assert_eq!(ring.register(IORING_REGISTER_FILE_ALLOC_RANGE, address(&range) as usize, 0), 0);
    let socket = sqe::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).file_index(ANY);
    assert_eq!(ring.run(sqe::close(0).file_index(1 + 1)), 0);
    assert_eq!(ring.run(socket), 2);
    assert_eq!(ring.run(sqe::close(0).file_index(7 + 1)), 0);
    assert_eq!([ring.run(socket), ring.run(socket)], [3, 4]);
    assert_eq!(ring.run(sqe::close(0).file_index(6 + 1)), 0);
    assert_eq!([ring.run(socket), ring.run(socket)], [5, -libc::ENFILE]);
}

#[case]
fn a_path_descriptor_is_not_registered(cx: &Context) {
    drop(file("f", b"x"));
    // As in `rw_file::read_of_a_path_descriptor_is_ebadf`.
    // SAFETY: a constant name.
    let path = owned(unsafe { libc::open(c"f".as_ptr(), libc::O_PATH) }, "open");
    let (mut ring, numbers) = (cx.ring(4), [fd(&path)]);
    assert_eq!(ring.register(IORING_REGISTER_FILES, address(&numbers) as usize, 1) as i32, -EBADF);
    ring.register_files(&[-1, -1]);
    let update = prep(Opcode::FilesUpdate, -1, address(&numbers), 1, 0);
    assert_eq!(ring.run(update), -EBADF);
    assert_eq!(ring.run(Sqe { off: u64::from(ANY), ..update }), -EBADF);
}
