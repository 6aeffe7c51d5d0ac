//! IOSQE_BUFFER_SELECT from a buffer ring: the requests that take a buffer, the moment, and the length used.

use super::prelude::*;
use crate::buffers::*;

topic!(since: "5.19", source: "io_uring_enter(2), io_uring/kbuf.c");

#[case]
fn read_takes_the_first_buffer(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    buffers.give(6);
    buffers.give(2);
    writer.write_all(b"abcdef").expect("write");
    assert_eq!(run_taking(&mut ring, read_select(fd(&reader), 1, 4)), (4, Some(6)));
    assert_eq!(buffers.content(6, 5), b"abcd\0");
    assert_eq!(run_taking(&mut ring, read_select(fd(&reader), 1, 64)), (2, Some(2)));
    assert_eq!(buffers.content(2, 3), b"ef\0");
}

#[case]
fn read_of_length_zero_takes_the_whole_buffer(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 16);
    writer.write_all(&[1; 40]).expect("write");
    assert_eq!(run_taking(&mut ring, read_select(fd(&reader), 1, 0)), (16, Some(0)));
}

#[case]
fn read_takes_no_more_than_the_buffer(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 16);
    writer.write_all(&[1; 40]).expect("write");
    assert_eq!(run_taking(&mut ring, read_select(fd(&reader), 1, 4096)), (16, Some(0)));
}

#[case(since = "6.8")]
fn read_of_a_file_takes_a_buffer(cx: &Context) {
    let (file, mut ring) = (file("f", b"0123456789"), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 16);
    assert_eq!(run_taking(&mut ring, Sqe { off: 2, ..read_select(fd(&file), 1, 4) }), (4, Some(0)));
    assert_eq!(buffers.content(0, 4), b"2345");
    assert_eq!(run_taking(&mut ring, read_select(fd(&file), 1, 0)), (10, Some(1)));
    assert_eq!(run_taking(&mut ring, Sqe { off: 100, ..read_select(fd(&file), 1, 0) }), (0, Some(2)));
    assert_eq!(buffers.head(&ring), 3);
}

#[case(since = "6.8")]
fn read_waits_and_takes_the_buffer_then(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    buffers.give(3);
    ring.go(read_select(fd(&reader), 1, 0));
    ring.expect_quiet();
    assert_eq!(buffers.head(&ring), 0);
    writer.write_all(b"later").expect("write");
    assert_eq!(last_buffer(&ring.wait()), (5, Some(3)));
    assert_eq!((buffers.content(3, 5), buffers.head(&ring)), (&b"later"[..], 1));
}

#[case(since = "6.8")]
fn read_at_the_end_takes_a_buffer(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    drop(writer);
    assert_eq!(run_taking(&mut ring, read_select(fd(&reader), 1, 0)), (0, Some(0)));
    assert_eq!(buffers.head(&ring), 1);
}

#[case(since = "6.8")]
fn read_into_a_bad_buffer(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    buffers.give_at(4, bad_address(), 64);
    writer.write_all(b"x").expect("write");
    assert_eq!(run_taking(&mut ring, read_select(fd(&reader), 1, 0)), (-EFAULT, None));
    assert_eq!(buffers.head(&ring), 0);
}

#[case(since = "6.8")]
fn read_of_a_file_into_a_bad_buffer(cx: &Context) {
    let (file, mut ring) = (file("f", b"0123456789"), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    buffers.give_at(4, bad_address(), 64);
    assert_eq!(run_taking(&mut ring, read_select(fd(&file), 1, 0)), (-EFAULT, Some(4)));
    assert_eq!(buffers.head(&ring), 1);
}

#[case(since = "6.8")]
fn read_async_waits(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(read_select(fd(&reader), 1, 0).with(IOSQE_ASYNC));
    ring.expect_quiet();
    writer.write_all(b"later").expect("write");
    assert_eq!(last_buffer(&ring.wait()), (5, Some(0)));
    assert_eq!((buffers.content(0, 5), buffers.head(&ring)), (&b"later"[..], 1));
}

#[case]
fn read_of_a_file_async(cx: &Context) {
    let (file, mut ring) = (file("f", b"0123456789"), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    assert_eq!(run_taking(&mut ring, read_select(fd(&file), 1, 0).with(IOSQE_ASYNC)), (10, Some(0)));
    assert_eq!(buffers.content(0, 10), b"0123456789");
    let unknown = read_select(fd(&file), 9, 0).with(IOSQE_ASYNC);
    assert_eq!(run_taking(&mut ring, unknown), (-libc::ENOBUFS, None));
}

#[case]
fn readv_takes_the_length_of_its_vector(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    writer.write_all(b"abcdef").expect("write");
    let vector = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 4 }];
    let sqe = sqe::readv(fd(&reader), &vector, 0).with(IOSQE_BUFFER_SELECT).buffer(1);
    assert_eq!(run_taking(&mut ring, sqe), (4, Some(0)));
    assert_eq!(buffers.content(0, 5), b"abcd\0");
}

#[case]
fn readv_of_two_vectors_is_einval(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    let vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 4 }; 2];
    let sqe = sqe::readv(fd(&reader), &vectors, 0).with(IOSQE_BUFFER_SELECT).buffer(1);
    assert_eq!(run_taking(&mut ring, sqe), (-EINVAL, None));
    assert_eq!(run_taking(&mut ring, Sqe { len: 0, ..sqe }), (-EINVAL, None));
}

#[case]
fn readv_of_a_bad_vector_is_efault(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    let sqe = prep(Opcode::Readv, fd(&reader), bad_address(), 1, 0).with(IOSQE_BUFFER_SELECT).buffer(1);
    assert_eq!(run_taking(&mut ring, sqe), (-EFAULT, None));
}

#[case]
fn recv_takes_a_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 16);
    put(&a, b"0123456789abcdefghij");
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 1, 4)), (4, Some(0)));
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 1, 0)), (16, Some(1)));
    assert_eq!((buffers.content(0, 5), buffers.content(1, 16)), (&b"0123\0"[..], &b"456789abcdefghij"[..]));
}

#[case(since = "6.8")]
fn recv_waits_and_takes_the_buffer_then(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    buffers.give(3);
    ring.go(recv_select(fd(&b), 1, 0));
    ring.expect_quiet();
    assert_eq!(buffers.head(&ring), 0);
    put(&a, b"later");
    assert_eq!(last_buffer(&ring.wait()), (5, Some(3)));
    assert_eq!((buffers.content(3, 5), buffers.head(&ring)), (&b"later"[..], 1));
}

#[case(since = "6.8")]
fn recv_at_the_end_takes_none(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    drop(a);
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 1, 0)), (0, None));
    assert_eq!(buffers.head(&ring), 0);
}

#[case(since = "6.8")]
fn recv_waitall_keeps_its_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    put(&a, b"abc");
    ring.go(recv_select(fd(&b), 1, 6).op_flags(libc::MSG_WAITALL as u32));
    ring.expect_quiet();
    assert_eq!(buffers.head(&ring), 1);
    put(&a, b"defghi");
    assert_eq!(last_buffer(&ring.wait()), (6, Some(0)));
    assert_eq!((buffers.content(0, 7), buffers.head(&ring)), (&b"abcdef\0"[..], 1));
}

#[case]
fn recv_without_a_buffer_is_enobufs(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let _buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 1, 0)), (-libc::ENOBUFS, None));
    put(&a, b"x");
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 1, 0)), (-libc::ENOBUFS, None));
}

#[case]
fn recv_of_an_unknown_group_is_enobufs(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(4));
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 1, 0)), (-libc::ENOBUFS, None));
}

#[case]
fn recv_of_a_file_is_enotsock(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    assert_eq!(run_taking(&mut ring, recv_select(fd(&file), 1, 0)), (-ENOTSOCK, None));
}

#[case(since = "6.8")]
fn recv_cancelled_takes_none(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv_select(fd(&b), 1, 0).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    let mut cqes = ring.wait_all(2);
    cqes.sort_by_key(|cqe| cqe.user_data);
    assert_eq!(last_buffer(&cqes[0]), (-ECANCELED, None));
    assert_eq!(buffers.head(&ring), 0);
}

#[case(since = "6.8")]
fn recv_dontwait_takes_none(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    let sqe = recv_select(fd(&b), 1, 0).op_flags(libc::MSG_DONTWAIT as u32);
    assert_eq!(run_taking(&mut ring, sqe), (-EAGAIN, None));
    assert_eq!(buffers.head(&ring), 0);
}

#[case(since = "6.8")]
fn recv_async_waits(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv_select(fd(&b), 1, 0).with(IOSQE_ASYNC));
    ring.expect_quiet();
    put(&a, b"later");
    assert_eq!(last_buffer(&ring.wait()), (5, Some(0)));
    assert_eq!((buffers.content(0, 5), buffers.head(&ring)), (&b"later"[..], 1));
}

fn recvmsg_select(fd: i32, message: &mut libc::msghdr, group: u16) -> Sqe {
    sqe::recvmsg(fd, message, 0).with(IOSQE_BUFFER_SELECT).buffer(group)
}

#[case]
fn recvmsg_takes_a_buffer(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 4 }];
    let mut header = message(&mut vectors);
    ring.go(recvmsg_select(fd(&b), &mut header, 1));
    ring.expect_quiet();
    put(&a, b"abcdef");
    assert_eq!(last_buffer(&ring.wait()), (4, Some(0)));
    assert_eq!(buffers.content(0, 5), b"abcd\0");
    assert_eq!(std::hint::black_box(&header).msg_flags, libc::MSG_TRUNC);
}

#[case]
fn recvmsg_of_no_vectors_takes_the_whole_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 16);
    put(&a, &[1; 40]);
    let mut header = message(&mut []);
    assert_eq!(run_taking(&mut ring, recvmsg_select(fd(&b), &mut header, 1)), (16, Some(0)));
}

#[case]
fn recvmsg_of_two_vectors_is_einval(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 16);
    put(&a, &[1; 40]);
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 4 }; 2];
    let mut header = message(&mut vectors);
    assert_eq!(run_taking(&mut ring, recvmsg_select(fd(&b), &mut header, 1)), (-EINVAL, None));
}

fn send_select(fd: i32, group: u16, len: u32) -> Sqe {
    prep(Opcode::Send, fd, 0, len, 0).with(IOSQE_BUFFER_SELECT).buffer(group)
}

fn received(from: &OwnedFd) -> Vec<u8> {
    let mut room = vec![0; 1 << 20];
    // SAFETY: the buffer has the length passed.
    let count = unsafe { libc::recv(fd(from), room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT) };
    room.truncate(count.max(0) as usize);
    room
}

#[case(since = "6.8")]
fn send_takes_a_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 4, 0);
    buffers.content_mut(2).copy_from_slice(b"sent");
    buffers.give(2);
    assert_eq!(run_taking(&mut ring, send_select(fd(&a), 1, 0)), (4, Some(2)));
    assert_eq!((received(&b), buffers.head(&ring)), (b"sent".to_vec(), 1));
    assert_eq!(run_taking(&mut ring, send_select(fd(&a), 1, 0)), (-libc::ENOBUFS, None));
}

#[case]
fn send_takes_no_more_than_asked(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 4, 0);
    buffers.content_mut(2).copy_from_slice(b"sent");
    buffers.give(2);
    assert_eq!(run_taking(&mut ring, send_select(fd(&a), 1, 3)), (3, Some(2)));
    assert_eq!(received(&b), b"sen");
}

#[case(since = "6.8")]
fn send_that_waits_keeps_its_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 4, 0);
    buffers.content_mut(2).copy_from_slice(b"sent");
    buffers.give(2);
    let chunk = [1; 4096];
    // SAFETY: the chunk lives until each call returns.
    while unsafe { libc::send(fd(&a), chunk.as_ptr().cast(), 4096, libc::MSG_DONTWAIT) } > 0 {}
    ring.go(send_select(fd(&a), 1, 0));
    ring.expect_quiet();
    assert_eq!(buffers.head(&ring), 1);
    while !received(&b).is_empty() {}
    assert_eq!(last_buffer(&ring.wait()), (4, Some(2)));
}

#[case]
fn write_with_select_is_eopnotsupp(cx: &Context) {
    let ((_reader, writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 16);
    let sqe = prep(Opcode::Write, fd(&writer), 0, 1, 0).with(IOSQE_BUFFER_SELECT).buffer(1);
    assert_eq!(run_taking(&mut ring, sqe), (-EOPNOTSUPP, None));
}

#[case]
fn nop_with_select_is_eopnotsupp(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::nop().with(IOSQE_BUFFER_SELECT)), -EOPNOTSUPP);
}

#[case]
fn short_read_breaks_links(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 4, 64);
    writer.write_all(b"abc").expect("write");
    ring.go_all(&[read_select(fd(&reader), 1, 0).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 3), (2, -ECANCELED)]);
}

#[case]
fn enobufs_breaks_links(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(4));
    ring.go_all(&[recv_select(fd(&b), 1, 0).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, -libc::ENOBUFS), (2, -ECANCELED)]);
}

#[case(since = "6.8")]
fn skip_success_hides_the_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 4, 64);
    put(&a, b"abc");
    ring.go(recv_select(fd(&b), 1, 0).with(IOSQE_CQE_SKIP_SUCCESS));
    ring.expect_quiet();
    assert_eq!((buffers.head(&ring), buffers.content(0, 3)), (1, &b"abc"[..]));
}

#[case]
fn bad_descriptor_is_ebadf(cx: &Context) {
    let mut ring = cx.ring(4);
    let _buffers = BufferRing::filled(&ring, 1, 4, 64);
    assert_eq!(run_taking(&mut ring, read_select(9999, 1, 0)), (-EBADF, None));
    assert_eq!(run_taking(&mut ring, read_select(9999, 2, 0)), (-EBADF, None));
    assert_eq!(run_taking(&mut ring, recv_select(9999, 1, 0)), (-EBADF, None));
    assert_eq!(run_taking(&mut ring, recv_select(9999, 2, 0)), (-EBADF, None));
}

#[case]
fn recv_after_another_that_waits_needs_a_buffer(cx: &Context) {
    let ((a, b), mut ring, mut room) = (pair(), cx.ring(8), [0; 8]);
    let mut buffers = BufferRing::new(&ring, 1, 2, 8, 0);
    ring.go(sqe::recv(fd(&b), &mut room, 0).data(1));
    ring.expect_quiet();
    ring.go(recv_select(fd(&b), 1, 8).data(2));
    assert_eq!(ring.wait_ordered(1), [(2, -libc::ENOBUFS)]);
    buffers.give(0);
    ring.go(recv_select(fd(&b), 1, 8).data(3));
    ring.expect_quiet();
    put(&a, b"abc");
    assert_eq!(ring.wait_ordered(1), [(3, 3)]);
    put(&a, b"abcd");
    assert_eq!(ring.wait_ordered(1), [(1, 4)]);
}

#[case]
fn recv_poll_first_looks_for_a_buffer_with_the_data(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let mut buffers = BufferRing::new(&ring, 1, 2, 8, 0);
    let sqe = recv_select(fd(&b), 1, 8).ioprio(IORING_RECVSEND_POLL_FIRST as u16);
    ring.go(sqe);
    ring.expect_quiet();
    put(&a, b"abc");
    assert_eq!(last_buffer(&ring.wait()), (-libc::ENOBUFS, None));
    assert_eq!(readable_bytes(&b), 3);
    put(&a, b"de");
    buffers.give(0);
    assert_eq!(run_taking(&mut ring, sqe), (5, Some(0)));
}
