//! IORING_CQE_F_SOCK_NONEMPTY, which reports more data in a socket. Also POLL_FIRST on files that are no sockets.

use super::prelude::*;
use std::net::{TcpListener, TcpStream};

topic!(since: "5.19", source: "io_uring_enter(2), io_uring/net.c");

const LEFT: u32 = IORING_CQE_F_SOCK_NONEMPTY;

/// Pairs of both kinds of sockets that report remaining data.
fn pairs() -> [(OwnedFd, OwnedFd); 2] {
    let (a, b) = tcp_pair();
    [(a.into(), b.into()), unix_pair(libc::SOCK_STREAM)]
}

fn put(to: &OwnedFd, bytes: &[u8]) {
    // SAFETY: the bytes live until the call returns.
    assert_eq!(unsafe { libc::send(fd(to), bytes.as_ptr().cast(), bytes.len(), 0) }, bytes.len() as isize);
}

fn result_and_flags(ring: &mut Ring, sqe: Sqe) -> (i32, u32) {
    ring.go(sqe);
    let cqe = ring.wait();
    (cqe.res, cqe.flags)
}

#[case]
fn recv_that_leaves_data(cx: &Context) {
    for (a, b) in pairs() {
        let (mut ring, mut room) = (cx.ring(8), [0; 8]);
        put(&b, b"abcdef");
        assert_eq!(result_and_flags(&mut ring, sqe::recv(fd(&a), &mut room[..2], 0)), (2, LEFT));
        assert_eq!(result_and_flags(&mut ring, sqe::recv(fd(&a), &mut room[..4], 0)), (4, 0));
    }
}

#[case]
fn recv_that_takes_all(cx: &Context) {
    for (a, b) in pairs() {
        let (mut ring, mut room) = (cx.ring(8), [0; 8]);
        put(&b, b"abcdef");
        assert_eq!(result_and_flags(&mut ring, sqe::recv(fd(&a), &mut room, 0)), (6, 0));
        assert_eq!(result_and_flags(&mut ring, sqe::recv(fd(&a), &mut room, libc::MSG_DONTWAIT)), (-EAGAIN, 0));
    }
}

#[case]
fn recv_of_nothing(cx: &Context) {
    for (a, b) in pairs() {
        let mut ring = cx.ring(8);
        put(&b, b"abcdef");
        assert_eq!(result_and_flags(&mut ring, sqe::recv(fd(&a), &mut [], 0)), (0, LEFT));
    }
}

#[case]
fn recv_that_peeks(cx: &Context) {
    for (a, b) in pairs() {
        let (mut ring, mut room) = (cx.ring(8), [0; 8]);
        put(&b, b"abcdef");
        assert_eq!(result_and_flags(&mut ring, sqe::recv(fd(&a), &mut room, libc::MSG_PEEK)), (6, LEFT));
        assert_eq!(result_and_flags(&mut ring, sqe::recv(fd(&a), &mut room, 0)), (6, 0));
    }
}

#[case]
fn recvmsg_that_leaves_data(cx: &Context) {
    for (a, b) in pairs() {
        let (mut ring, mut room) = (cx.ring(8), [0; 8]);
        let mut vectors = [iovec_mut(&mut room[..2])];
        // SAFETY: msghdr is plain numbers and pointers, for which zeroes are valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (vectors.as_mut_ptr(), 1);
        put(&b, b"abc");
        assert_eq!(result_and_flags(&mut ring, sqe::recvmsg(fd(&a), &mut message, 0)), (2, LEFT));
        assert_eq!(result_and_flags(&mut ring, sqe::recvmsg(fd(&a), &mut message, 0)), (1, 0));
    }
}

#[case]
fn async_recv_that_leaves_data(cx: &Context) {
    for (a, b) in pairs() {
        let (mut ring, mut room) = (cx.ring(8), [0; 2]);
        put(&b, b"abcdef");
        assert_eq!(result_and_flags(&mut ring, sqe::recv(fd(&a), &mut room, 0).with(IOSQE_ASYNC)), (2, LEFT));
    }
}

#[case]
fn recv_that_waited(cx: &Context) {
    for (a, b) in pairs() {
        let (mut ring, mut room) = (cx.ring(8), [0; 2]);
        ring.go(sqe::recv(fd(&a), &mut room, 0));
        ring.expect_quiet();
        put(&b, b"abc");
        let cqe = ring.wait();
        assert_eq!((cqe.res, cqe.flags), (2, LEFT));
    }
}

#[case]
fn recv_waitall(cx: &Context) {
    for (a, b) in pairs() {
        let (mut ring, mut room) = (cx.ring(8), [0; 4]);
        put(&b, b"ab");
        ring.go(sqe::recv(fd(&a), &mut room, libc::MSG_WAITALL));
        ring.expect_quiet();
        put(&b, b"cdef");
        let cqe = ring.wait();
        assert_eq!((cqe.res, cqe.flags), (4, LEFT));
    }
}

#[case]
fn recv_linked(cx: &Context) {
    for (a, b) in pairs() {
        let (mut ring, mut room) = (cx.ring(8), [0; 2]);
        put(&b, b"abcdef");
        let recv = sqe::recv(fd(&a), &mut room, 0);
        ring.go_all(&[recv.with(IOSQE_IO_LINK).data(1), recv.with(IOSQE_CQE_SKIP_SUCCESS).data(2)]);
        let cqe = ring.wait();
        assert_eq!((cqe.user_data, cqe.res, cqe.flags), (1, 2, LEFT));
        ring.expect_quiet();
    }
}

#[case]
fn recv_of_messages_says_nothing(cx: &Context) {
    let (receiver, sender) = (udp(), udp());
    sender.connect(receiver.local_addr().expect("the address")).expect("connect");
    let pairs = [(receiver.into(), sender.into()), unix_pair(libc::SOCK_DGRAM), unix_pair(libc::SOCK_SEQPACKET)];
    for (a, b) in pairs {
        let (mut ring, mut room) = (cx.ring(8), [0; 2]);
        put(&b, b"abc");
        put(&b, b"def");
        assert_eq!(result_and_flags(&mut ring, sqe::recv(fd(&a), &mut room, 0)), (2, 0));
    }
}

fn udp() -> std::net::UdpSocket {
    std::net::UdpSocket::bind("127.0.0.1:0").expect("bind")
}

#[case(since = "6.0")]
fn multishot_recv(cx: &Context) {
    for (a, b) in pairs() {
        let mut ring = cx.ring(8);
        let _buffers = crate::buffers::BufferRing::filled(&ring, 1, 8, 4);
        put(&b, b"0123456789");
        let multishot = IORING_RECV_MULTISHOT as u16;
        ring.go(prep(Opcode::Recv, fd(&a), 0, 0, 0).with(IOSQE_BUFFER_SELECT).ioprio(multishot).buffer(1));
        let flags: Vec<_> = ring.wait_all(3).iter().map(|cqe| cqe.flags & LEFT).collect();
        assert_eq!(flags, [LEFT, LEFT, 0]);
    }
}

fn connect(to: &TcpListener) -> TcpStream {
    TcpStream::connect(to.local_addr().expect("the address")).expect("connect")
}

#[case]
fn accept_that_leaves_connections(cx: &Context) {
    for nonblocking in [false, true] {
        let ((listener, _), mut ring) = (listener(), cx.ring(8));
        listener.set_nonblocking(nonblocking).expect("nonblocking");
        let _clients = [connect(&listener), connect(&listener)];
        for expected in [LEFT, 0] {
            let (number, flags) = result_and_flags(&mut ring, sqe::accept(fd(&listener), 0));
            drop(owned(number, "accepted"));
            assert_eq!(flags, expected);
        }
    }
}

#[case]
fn multishot_accept_of_connections_that_wait(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    let _clients = [connect(&listener), connect(&listener), connect(&listener)];
    ring.go(sqe::accept(fd(&listener), 0).ioprio(IORING_ACCEPT_MULTISHOT as u16));
    let cqes = ring.wait_all(3);
    cqes.iter().for_each(|cqe| drop(owned(cqe.res, "accepted")));
    let flags: Vec<_> = cqes.iter().map(|cqe| cqe.flags).collect();
    assert_eq!(flags, [IORING_CQE_F_MORE | LEFT, IORING_CQE_F_MORE | LEFT, IORING_CQE_F_MORE]);
}

#[case]
fn accept_of_a_unix_listener_says_nothing(cx: &Context) {
    use std::os::unix::net::{UnixListener, UnixStream};
    let mut ring = cx.ring(8);
    let listener = UnixListener::bind("listener").expect("bind");
    let _clients =
        [UnixStream::connect("listener").expect("connect"), UnixStream::connect("listener").expect("connect")];
    let (number, flags) = result_and_flags(&mut ring, sqe::accept(fd(&listener), 0));
    drop(owned(number, "accepted"));
    assert_eq!(flags, 0);
}

#[case(since = "6.10")]
fn accept_dontwait_of_none_is_eagain(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    let dontwait = sqe::accept(fd(&listener), 0).ioprio(IORING_ACCEPT_DONTWAIT as u16);
    assert_eq!(result_and_flags(&mut ring, dontwait), (-EAGAIN, 0));
    let _client = connect(&listener);
    drop(owned(result_and_flags(&mut ring, dontwait).0, "accepted"));
}

#[case]
fn accept_dontwait_with_poll_first_is_eagain(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    let _client = connect(&listener);
    let both = (IORING_ACCEPT_DONTWAIT | IORING_ACCEPT_POLL_FIRST) as u16;
    assert_eq!(result_and_flags(&mut ring, sqe::accept(fd(&listener), 0).ioprio(both)), (-EAGAIN, 0));
}

#[case(since = "6.10")]
fn multishot_accept_dontwait_ends_with_eagain(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    let _clients = [connect(&listener), connect(&listener)];
    let both = (IORING_ACCEPT_MULTISHOT | IORING_ACCEPT_DONTWAIT) as u16;
    ring.go(sqe::accept(fd(&listener), 0).ioprio(both));
    let cqes = ring.wait_all(3);
    cqes[..2].iter().for_each(|cqe| drop(owned(cqe.res, "accepted")));
    assert_eq!((cqes[1].flags, cqes[2].res, cqes[2].flags), (IORING_CQE_F_MORE, -EAGAIN, 0));
}

#[case]
fn poll_first_dontwait_is_eagain(cx: &Context) {
    let ((a, b), mut ring, mut room) = (unix_pair(libc::SOCK_STREAM), cx.ring(8), [0; 8]);
    let _buffers = crate::buffers::BufferRing::filled(&ring, 1, 8, 4);
    put(&b, b"abc");
    let (first, dontwait) = (IORING_RECVSEND_POLL_FIRST as u16, libc::MSG_DONTWAIT);
    let chooses = prep(Opcode::Recv, fd(&a), 0, 0, 0).with(IOSQE_BUFFER_SELECT).buffer(1).op_flags(dontwait as u32);
    for sqe in [sqe::recv(fd(&a), &mut room, dontwait), sqe::send(fd(&a), b"abc", dontwait), chooses] {
        assert_eq!(result_and_flags(&mut ring, sqe.ioprio(first)), (-EAGAIN, 0));
    }
}

#[case]
fn poll_first_of_a_file(cx: &Context) {
    let (file, mut ring, mut room) = (file("file", b"x"), cx.ring(8), [0; 8]);
    let first = IORING_RECVSEND_POLL_FIRST as u16;
    let no_socket = if cx.answers_since("7.3") { -ENOTSOCK } else { -EAGAIN };
    assert_eq!(ring.run(sqe::recv(fd(&file), &mut room, 0).ioprio(first)), no_socket);
    assert_eq!(ring.run(sqe::send(fd(&file), b"x", 0).ioprio(first)), -ENOTSOCK);
    let accept = sqe::accept(fd(&file), 0).ioprio(IORING_ACCEPT_POLL_FIRST as u16);
    assert_eq!(ring.run(accept), -EAGAIN);
}

#[case(until = "7.3")]
fn poll_first_of_a_pipe(cx: &Context) {
    let ((reader, writer), mut ring, mut room) = (pipe(), cx.ring(8), [0; 8]);
    let first = IORING_RECVSEND_POLL_FIRST as u16;
    // SAFETY: msghdr is plain numbers and pointers, for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    assert_eq!(ring.run(sqe::recvmsg(fd(&reader), &mut message, 0).ioprio(first)), -ENOTSOCK);
    ring.go(sqe::recv(fd(&reader), &mut room, 0).ioprio(first));
    ring.expect_quiet();
    drop(writer);
    assert_eq!(ring.wait().res, -ENOTSOCK);
}

#[case]
fn out_of_band_recv_says_whether_the_socket_has_data(cx: &Context) {
    let ((a, mut b), mut ring, mut room) = (tcp_pair(), cx.ring(8), [0; 8]);
    let urgent = |byte: &[u8; 1]| {
        // SAFETY: the byte lives until the call returns.
        assert_eq!(unsafe { libc::send(fd(&b), byte.as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
        assert_eq!(cx.door.poll(fd(&a), libc::POLLPRI, 1000), libc::POLLPRI as isize, "the byte arrives");
    };
    (&b).write_all(b"abc").expect("room");
    urgent(b"X");
    let mut recv = |bytes: usize, flags| result_and_flags(&mut ring, sqe::recv(fd(&a), &mut room[..bytes], flags));
    assert_eq!(recv(8, libc::MSG_OOB), (1, LEFT), "data precedes the mark");
    assert_eq!(recv(3, 0).0, 3);
    urgent(b"Y");
    assert_eq!(recv(8, libc::MSG_OOB), (1, LEFT), "the mark counts");
    assert_eq!(recv(8, libc::MSG_OOB), (-EINVAL, 0), "it was read");
    b.write_all(b"z").expect("room");
    assert_eq!(recv(8, 0), (1, 0));
}

#[case]
fn out_of_band_recv_of_a_unix_socket(cx: &Context) {
    let ((a, b), mut ring, mut room) = (unix_pair(libc::SOCK_STREAM), cx.ring(8), [0; 8]);
    put(&b, b"abc");
    // SAFETY: a constant byte.
    assert_eq!(unsafe { libc::send(fd(&b), b"X".as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
    assert_eq!(result_and_flags(&mut ring, sqe::recv(fd(&a), &mut room, libc::MSG_OOB)), (1, 0));
    assert_eq!(result_and_flags(&mut ring, sqe::recv(fd(&a), &mut room, 0)), (3, 0));
}
