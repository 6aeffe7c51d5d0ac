//! SPLICE, TEE and EPOLL_CTL.

use super::prelude::*;

topic!(since: "5.7", source: "io_uring_enter(2), io_uring/splice.c, io_uring/epoll.c");

#[case]
fn splice_pipe_to_pipe(cx: &Context) {
    let ((from, mut writer), (mut reader, to)) = (pipe(), pipe());
    writer.write_all(b"abc").expect("write");
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&from), -1, fd(&to), -1, 3)), 3);
    let mut buffer = [0; 3];
    reader.read_exact(&mut buffer).expect("read");
    assert_eq!(&buffer, b"abc");
}

#[case]
fn splice_file_to_pipe(cx: &Context) {
    let (file, (mut reader, to)) = (file("f", b"0123456789"), pipe());
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&file), 4, fd(&to), -1, 3)), 3);
    let mut buffer = [0; 3];
    reader.read_exact(&mut buffer).expect("read");
    assert_eq!(&buffer, b"456");
}

#[case]
fn splice_file_to_pipe_at_the_position(cx: &Context) {
    use std::io::Seek;
    let (mut file, (_reader, to)) = (file("f", b"0123456789"), pipe());
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(sqe::splice(fd(&file), -1, fd(&to), -1, 3)), 3);
    assert_eq!(file.stream_position().expect("seek"), 3);
    assert_eq!(ring.run(sqe::splice(fd(&file), 0, fd(&to), -1, 3)), 3);
    assert_eq!(file.stream_position().expect("seek"), 3, "an offset leaves the position");
}

#[case]
fn splice_pipe_to_file(cx: &Context) {
    let (file, (from, mut writer)) = (file("f", b"0123456789"), pipe());
    writer.write_all(b"ab").expect("write");
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&from), -1, fd(&file), 5, 2)), 2);
    assert_eq!(std::fs::read("f").expect("read"), b"01234ab789");
}

#[case]
fn splice_pipe_to_socket(cx: &Context) {
    let ((from, mut writer), (a, b)) = (pipe(), unix_pair(libc::SOCK_STREAM));
    writer.write_all(b"abc").expect("write");
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&from), -1, fd(&a), -1, 3)), 3);
    assert_eq!(readable_bytes(&b), 3);
}

#[case]
fn splice_socket_to_pipe(cx: &Context) {
    let ((a, mut b), (reader, to)) = (tcp_pair(), pipe());
    b.write_all(b"abc").expect("write");
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&a), -1, fd(&to), -1, 3)), 3);
    assert_eq!(readable_bytes(&reader), 3);
}

#[case]
fn splice_waits_for_data(cx: &Context) {
    let ((from, mut writer), (_reader, to), mut ring) = (pipe(), pipe(), cx.ring(4));
    ring.go(sqe::splice(fd(&from), -1, fd(&to), -1, 3));
    ring.expect_quiet();
    writer.write_all(b"abc").expect("write");
    assert_eq!(ring.wait().res, 3);
}

#[case]
fn splice_to_a_full_pipe_waits(cx: &Context) {
    let ((from, mut writer), (mut reader, to), mut ring) = (pipe(), full_pipe(), cx.ring(4));
    writer.write_all(b"abc").expect("write");
    ring.go(sqe::splice(fd(&from), -1, fd(&to), -1, 3));
    ring.expect_quiet();
    reader.read_exact(&mut [0; 4096]).expect("read");
    assert_eq!(ring.wait().res, 3);
}

#[case]
fn splice_at_eof_is_zero(cx: &Context) {
    let (file, (_reader, to)) = (file("f", b"012"), pipe());
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&file), 3, fd(&to), -1, 3)), 0);
}

#[case]
fn splice_of_a_closed_pipe_is_zero(cx: &Context) {
    let ((from, _), (_reader, to)) = (pipe(), pipe());
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&from), -1, fd(&to), -1, 3)), 0);
}

#[case]
fn splice_of_nothing_is_zero(cx: &Context) {
    let ((from, _writer), (_reader, to)) = (pipe(), pipe());
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&from), -1, fd(&to), -1, 0)), 0);
}

#[case]
fn splice_with_an_offset_on_a_pipe_is_espipe(cx: &Context) {
    let ((from, mut writer), (_reader, to)) = (pipe(), pipe());
    writer.write_all(b"abc").expect("write");
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&from), 0, fd(&to), -1, 3)), -ESPIPE);
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&from), -1, fd(&to), 0, 3)), -ESPIPE);
}

/// The pipe is empty: any other error is returned at once.
#[case]
fn splice_is_refused_before_it_waits(cx: &Context) {
    let ((from, into), (other, to), mut ring) = (pipe(), pipe(), cx.ring(4));
    let file = file("f", b"abc");
    assert_eq!(ring.run(sqe::splice(fd(&from), 0, fd(&to), -1, 1)), -ESPIPE);
    assert_eq!(ring.run(sqe::splice(fd(&from), -1, fd(&to), 0, 1)), -ESPIPE);
    assert_eq!(ring.run(sqe::splice(fd(&from), 0, fd(&file), 0, 1)), -ESPIPE);
    assert_eq!(ring.run(sqe::splice(fd(&from), -1, fd(&into), -1, 1)), -EINVAL, "the same pipe");
    assert_eq!(ring.run(sqe::splice(fd(&from), -1, fd(&other), -1, 1)), -EBADF, "not open for writing");
    assert_eq!(ring.run(sqe::splice(fd(&into), -1, fd(&to), -1, 1)), -EBADF, "not open for reading");
    let (socket, _peer) = unix_pair(libc::SOCK_STREAM);
    assert_eq!(ring.run(sqe::splice(fd(&socket), -1, fd(&file), -1, 1)), -EINVAL, "no pipe at all");
    assert_eq!(ring.run(sqe::splice(fd(&socket), 0, fd(&to), -1, 1)), -EINVAL, "a socket has no position");
}

#[case]
fn tee_is_refused_before_it_waits(cx: &Context) {
    let ((from, into), (other, to), mut ring) = (pipe(), pipe(), cx.ring(4));
    let (socket, _peer) = unix_pair(libc::SOCK_STREAM);
    let tee = |from, to| sqe::tee(from, to, 1);
    assert_eq!(ring.run(tee(fd(&from), fd(&into))), -EINVAL, "the same pipe");
    assert_eq!(ring.run(tee(fd(&from), fd(&other))), -EBADF, "not open for writing");
    assert_eq!(ring.run(tee(fd(&into), fd(&to))), -EBADF, "not open for reading");
    assert_eq!(ring.run(tee(fd(&socket), fd(&to))), -EINVAL, "no pipe");
    assert_eq!(ring.run(tee(fd(&from), fd(&socket))), -EINVAL, "no pipe");
}

/// The ring is not readable: no data could come from it.
#[case]
fn splice_of_a_ring_is_einval(cx: &Context) {
    let ((from, mut writer), (_reader, to)) = (pipe(), pipe());
    let (mut ring, other) = (cx.ring(4), cx.ring(4));
    assert_eq!(ring.run(sqe::splice(other.fd, -1, fd(&to), -1, 1)), -EINVAL);
    assert_eq!(ring.run(sqe::splice(fd(&from), -1, other.fd, -1, 1)), -EINVAL, "an empty pipe");
    writer.write_all(b"a").expect("write");
    assert_eq!(ring.run(sqe::splice(fd(&from), -1, other.fd, -1, 1)), -EINVAL);
    assert_eq!(ring.run(sqe::splice(other.fd, -1, fd(&to), -1, 0)), 0, "nothing to move");
}

#[case]
fn splice_file_to_file_is_einval(cx: &Context) {
    let (from, to) = (file("f", b"abc"), file("g", b""));
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&from), -1, fd(&to), -1, 3)), -EINVAL);
}

#[case]
fn splice_same_pipe_is_einval(cx: &Context) {
    let (reader, mut writer) = pipe();
    writer.write_all(b"abc").expect("write");
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&reader), -1, fd(&writer), -1, 3)), -EINVAL);
}

#[case]
fn splice_unknown_flag_is_einval(cx: &Context) {
    let ((from, mut writer), (_reader, to)) = (pipe(), pipe());
    writer.write_all(b"abc").expect("write");
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&from), -1, fd(&to), -1, 3).op_flags(1 << 10)), -EINVAL);
}

#[case]
fn splice_bad_in_descriptor_is_ebadf(cx: &Context) {
    let (_reader, to) = pipe();
    assert_eq!(cx.ring(4).run(sqe::splice(9999, -1, fd(&to), -1, 3)), -EBADF);
    assert_eq!(cx.ring(4).run(sqe::splice(-1, -1, fd(&to), -1, 3)), -EBADF);
}

#[case]
fn splice_bad_out_descriptor_is_ebadf(cx: &Context) {
    let (from, _writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&from), -1, 9999, -1, 3)), -EBADF);
}

#[case]
fn splice_nonblock_of_an_empty_pipe_is_eagain(cx: &Context) {
    let ((from, _writer), (_reader, to)) = (pipe(), pipe());
    let splice = sqe::splice(fd(&from), -1, fd(&to), -1, 3);
    assert_eq!(cx.ring(4).run(splice.op_flags(libc::SPLICE_F_NONBLOCK)), -EAGAIN);
}

#[case]
fn splice_fixed_in_descriptor(cx: &Context) {
    let ((from, mut writer), (_reader, to), mut ring) = (pipe(), pipe(), cx.ring(4));
    writer.write_all(b"abc").expect("write");
    ring.register_files(&[-1, fd(&from)]);
    drop(from);
    let splice = sqe::splice(1, -1, fd(&to), -1, 3);
    assert_eq!(ring.run(splice.op_flags(SPLICE_F_FD_IN_FIXED)), 3);
    let empty = sqe::splice(0, -1, fd(&to), -1, 3);
    assert_eq!(ring.run(empty.op_flags(SPLICE_F_FD_IN_FIXED)), -EBADF);
}

#[case]
fn splice_fixed_out_descriptor(cx: &Context) {
    let ((from, mut writer), (reader, to), mut ring) = (pipe(), pipe(), cx.ring(4));
    writer.write_all(b"abc").expect("write");
    ring.register_files(&[fd(&to)]);
    assert_eq!(ring.run(sqe::splice(fd(&from), -1, 0, -1, 3).with(IOSQE_FIXED_FILE)), 3);
    assert_eq!(readable_bytes(&reader), 3);
}

#[case]
fn splice_fixed_in_without_table_is_ebadf(cx: &Context) {
    let (_reader, to) = pipe();
    assert_eq!(cx.ring(4).run(sqe::splice(0, -1, fd(&to), -1, 3).op_flags(SPLICE_F_FD_IN_FIXED)), -EBADF);
}

#[case]
fn splice_is_short_when_less_is_there(cx: &Context) {
    let ((from, mut writer), (_reader, to)) = (pipe(), pipe());
    writer.write_all(b"abc").expect("write");
    assert_eq!(cx.ring(4).run(sqe::splice(fd(&from), -1, fd(&to), -1, 100)), 3);
}

#[case(since = "5.8")]
fn tee_duplicates(cx: &Context) {
    let ((from, mut writer), (reader, to)) = (pipe(), pipe());
    writer.write_all(b"abc").expect("write");
    assert_eq!(cx.ring(4).run(sqe::tee(fd(&from), fd(&to), 10)), 3);
    assert_eq!((readable_bytes(&from), readable_bytes(&reader)), (3, 3));
}

#[case(since = "5.8")]
fn tee_waits_for_data(cx: &Context) {
    let ((from, mut writer), (_reader, to), mut ring) = (pipe(), pipe(), cx.ring(4));
    ring.go(sqe::tee(fd(&from), fd(&to), 10));
    ring.expect_quiet();
    writer.write_all(b"abc").expect("write");
    assert_eq!(ring.wait().res, 3);
}

#[case]
fn tee_of_a_file_is_einval(cx: &Context) {
    let (file, (_reader, to)) = (file("f", b"abc"), pipe());
    assert_eq!(cx.ring(4).run(sqe::tee(fd(&file), fd(&to), 10)), -EINVAL);
}

#[case]
fn tee_with_offsets_is_einval(cx: &Context) {
    let ((from, _writer), (_reader, to)) = (pipe(), pipe());
    let tee = sqe::tee(fd(&from), fd(&to), 10);
    assert_eq!(cx.ring(4).run(Sqe { off: 1, ..tee }), -EINVAL);
    assert_eq!(cx.ring(4).run(Sqe { addr: 1, ..tee }), -EINVAL);
}

#[case(since = "5.8")]
fn tee_of_nothing_is_zero(cx: &Context) {
    let ((from, _writer), (_reader, to)) = (pipe(), pipe());
    assert_eq!(cx.ring(4).run(sqe::tee(fd(&from), fd(&to), 0)), 0);
}

#[case(since = "5.8")]
fn tee_fixed_in_descriptor(cx: &Context) {
    let ((from, mut writer), (_reader, to), mut ring) = (pipe(), pipe(), cx.ring(4));
    writer.write_all(b"abc").expect("write");
    ring.register_files(&[fd(&from)]);
    assert_eq!(ring.run(sqe::tee(0, fd(&to), 10).op_flags(SPLICE_F_FD_IN_FIXED)), 3);
}

fn epoll_ctl(epoll: i32, operation: i32, target: i32, event: u64) -> Sqe {
    prep(Opcode::EpollCtl, epoll, event, operation as u32, target as u64)
}

fn readable() -> libc::epoll_event {
    libc::epoll_event { events: libc::EPOLLIN as u32, u64: 9 }
}

#[case]
fn epoll_ctl_adds(cx: &Context) {
    let (epoll, (reader, mut writer), event) = (epoll(), pipe(), readable());
    let add = epoll_ctl(fd(&epoll), libc::EPOLL_CTL_ADD, fd(&reader), address(&event));
    assert_eq!(cx.ring(4).run(add), 0);
    assert_eq!(cx.door.epoll_wait(fd(&epoll), 0), 0);
    writer.write_all(b"x").expect("write");
    assert_eq!(cx.door.epoll_wait(fd(&epoll), 10_000), libc::EPOLLIN as isize);
}

#[case]
fn epoll_ctl_add_twice_is_eexist(cx: &Context) {
    let (epoll, (reader, _writer), event) = (epoll(), pipe(), readable());
    let (add, mut ring) = (epoll_ctl(fd(&epoll), libc::EPOLL_CTL_ADD, fd(&reader), address(&event)), cx.ring(4));
    assert_eq!((ring.run(add), ring.run(add)), (0, -EEXIST));
}

#[case]
fn epoll_ctl_modifies_and_deletes(cx: &Context) {
    let (epoll, (reader, mut writer), event, mut ring) = (epoll(), pipe(), readable(), cx.ring(4));
    writer.write_all(b"x").expect("write");
    let none = libc::epoll_event { events: 0, u64: 9 };
    let control = |operation, event: &_| epoll_ctl(fd(&epoll), operation, fd(&reader), address(event));
    assert_eq!(ring.run(control(libc::EPOLL_CTL_ADD, &event)), 0);
    assert_eq!(ring.run(control(libc::EPOLL_CTL_MOD, &none)), 0);
    assert_eq!(cx.door.epoll_wait(fd(&epoll), 0), 0);
    assert_eq!(ring.run(epoll_ctl(fd(&epoll), libc::EPOLL_CTL_DEL, fd(&reader), 0)), 0);
    assert_eq!(ring.run(control(libc::EPOLL_CTL_MOD, &event)), -ENOENT);
}

#[case]
fn epoll_ctl_of_the_ring_itself(cx: &Context) {
    let (epoll, mut ring, event) = (epoll(), cx.ring(4), readable());
    let control = |operation| epoll_ctl(fd(&epoll), operation, ring.fd, address(&event));
    let [add, modify] = [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD].map(control);
    assert_eq!([modify, add, modify].map(|sqe| ring.run(sqe)), [-ENOENT, 0, 0]);
    ring.go(sqe::nop());
    assert_eq!(cx.door.epoll_wait(fd(&epoll), 10_000), libc::EPOLLIN as isize);
    assert_eq!(ring.wait().res, 0);
    assert_eq!(ring.run(epoll_ctl(ring.fd, libc::EPOLL_CTL_ADD, fd(&epoll), address(&event))), -EINVAL);
}

#[case]
fn epoll_ctl_missing_is_enoent(cx: &Context) {
    let (epoll, (reader, _writer)) = (epoll(), pipe());
    assert_eq!(cx.ring(4).run(epoll_ctl(fd(&epoll), libc::EPOLL_CTL_DEL, fd(&reader), 0)), -ENOENT);
}

#[case]
fn epoll_ctl_of_a_file_is_eperm(cx: &Context) {
    let (epoll, file, event) = (epoll(), file("f", b""), readable());
    let add = epoll_ctl(fd(&epoll), libc::EPOLL_CTL_ADD, fd(&file), address(&event));
    assert_eq!(cx.ring(4).run(add), -libc::EPERM);
}

#[case]
fn epoll_ctl_bad_event_is_efault(cx: &Context) {
    let (epoll, (reader, _writer)) = (epoll(), pipe());
    let add = epoll_ctl(fd(&epoll), libc::EPOLL_CTL_ADD, fd(&reader), bad_address());
    assert_eq!(cx.ring(4).run(add), -EFAULT);
}

#[case]
fn epoll_ctl_bad_descriptors(cx: &Context) {
    let (epoll, (reader, _writer), event) = (epoll(), pipe(), readable());
    let add = |epoll, target| epoll_ctl(epoll, libc::EPOLL_CTL_ADD, target, address(&event));
    assert_eq!(cx.ring(4).run(add(fd(&epoll), 9999)), -EBADF);
    assert_eq!(cx.ring(4).run(add(9999, fd(&reader))), -EBADF);
}

#[case]
fn epoll_ctl_unknown_operation_is_einval(cx: &Context) {
    let (epoll, (reader, _writer), event) = (epoll(), pipe(), readable());
    assert_eq!(cx.ring(4).run(epoll_ctl(fd(&epoll), 9, fd(&reader), address(&event))), -EINVAL);
    let add = epoll_ctl(fd(&epoll), libc::EPOLL_CTL_ADD, fd(&reader), address(&event));
    assert_eq!(cx.ring(4).run(add.buffer(1)), -EINVAL);
}

#[case]
fn epoll_ctl_of_no_epoll_is_einval(cx: &Context) {
    let ((reader, writer), event) = (pipe(), readable());
    let add = epoll_ctl(fd(&writer), libc::EPOLL_CTL_ADD, fd(&reader), address(&event));
    assert_eq!(cx.ring(4).run(add), -EINVAL);
}

#[case]
fn async_epoll_ctl(cx: &Context) {
    let (epoll, (reader, _writer), event) = (epoll(), pipe(), readable());
    let add = epoll_ctl(fd(&epoll), libc::EPOLL_CTL_ADD, fd(&reader), address(&event));
    assert_eq!(cx.ring(4).run(add.with(IOSQE_ASYNC)), 0);
}
