//! Error queues, urgent data, and sockets of datagrams that were shut down.

use super::prelude::*;
use crate::buffers::*;
use std::net::{SocketAddr, UdpSocket};

topic!(since: "5.6", source: "recv(2), io_uring/net.c");

const ERRORS: i32 = libc::MSG_ERRQUEUE;

fn udp() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").expect("bind")
}

/// A socket that queues errors, and an address without a socket.
fn with_error_queue() -> (UdpSocket, SocketAddr) {
    let (socket, yes) = (udp(), 1i32);
    let (value, length) = (std::ptr::from_ref(&yes).cast(), size_of::<i32>() as u32);
    // SAFETY: the value outlives the call.
    assert_eq!(unsafe { libc::setsockopt(fd(&socket), libc::SOL_IP, libc::IP_RECVERR, value, length) }, 0);
    (socket, udp().local_addr().expect("the address"))
}

/// Queues an error: the ICMP reply comes over the loopback device, before the call returns.
fn fail(socket: &UdpSocket, nobody: SocketAddr) {
    assert_eq!(socket.send_to(b"lost", nobody).expect("send"), 4);
}

#[case]
fn errors_are_waited_for(cx: &Context) {
    let ((socket, nobody), mut ring, mut room) = (with_error_queue(), cx.ring(8), [0; 8]);
    let mut control = [0u8; 256];
    let mut vectors = [iovec_mut(&mut room)];
    let mut message = message(&mut vectors);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), control.len() as _);
    ring.go(sqe::recvmsg(fd(&socket), &mut message, ERRORS));
    ring.expect_quiet();
    fail(&socket, nobody);
    assert_eq!(ring.wait().res, 4);
    assert_eq!(message.msg_flags & ERRORS, ERRORS);
    assert_ne!(message.msg_controllen, 0);
    assert_eq!(&room[..4], b"lost");
}

#[case]
fn error_that_is_there_is_received(cx: &Context) {
    let ((socket, nobody), mut ring, mut room) = (with_error_queue(), cx.ring(8), [0; 8]);
    fail(&socket, nobody);
    assert_eq!(ring.run(sqe::recv(fd(&socket), &mut room, ERRORS)), 4);
}

#[case]
fn no_error_beside_data_is_eagain(cx: &Context) {
    let ((socket, nobody), mut ring, mut room) = (with_error_queue(), cx.ring(8), [0; 8]);
    udp().send_to(b"data", socket.local_addr().expect("the address")).expect("send");
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(ring.run(sqe::recv(fd(&socket), &mut room, ERRORS).with(flags)), -EAGAIN);
    }
    fail(&socket, nobody);
    assert_eq!(ring.run(sqe::recv(fd(&socket), &mut room, ERRORS)), 4);
    assert_eq!(ring.run(sqe::recv(fd(&socket), &mut room, 0)), 4);
}

#[case]
fn data_ends_the_wait_for_an_error(cx: &Context) {
    let ((socket, _), mut ring, mut room) = (with_error_queue(), cx.ring(8), [0; 8]);
    ring.go(sqe::recv(fd(&socket), &mut room, ERRORS));
    ring.expect_quiet();
    udp().send_to(b"data", socket.local_addr().expect("the address")).expect("send");
    assert_eq!(ring.wait().res, -EAGAIN);
}

#[case]
fn no_error_with_dontwait_is_eagain(cx: &Context) {
    let ((socket, _), mut ring, mut room) = (with_error_queue(), cx.ring(8), [0; 8]);
    assert_eq!(ring.run(sqe::recv(fd(&socket), &mut room, ERRORS | libc::MSG_DONTWAIT)), -EAGAIN);
}

#[case(since = "5.19")]
fn urgent_byte_is_received_once(cx: &Context) {
    let ((a, b), mut ring, mut room) = (tcp_pair(), cx.ring(8), [0; 8]);
    assert_eq!(ring.run(sqe::recv(fd(&b), &mut room, libc::MSG_OOB)), -EINVAL);
    assert_eq!(ring.run(sqe::send(fd(&a), b"abX", libc::MSG_OOB)), 3);
    ring.go(sqe::poll_add(fd(&b), libc::POLLPRI, 0));
    assert_eq!(ring.wait().res, i32::from(libc::POLLPRI));
    assert_eq!((ring.run(sqe::recv(fd(&b), &mut room, libc::MSG_OOB)), room[0]), (1, b'X'));
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(ring.run(sqe::recv(fd(&b), &mut room, libc::MSG_OOB).with(flags)), -EINVAL);
    }
    assert_eq!((ring.run(sqe::recv(fd(&b), &mut room, 0)), &room[..2]), (2, &b"ab"[..]));
}

/// Datagram sockets, each with its peer: a Unix socket, a connected UDP socket, and an unconnected UDP socket.
fn datagram_sockets() -> Vec<(OwnedFd, OwnedFd)> {
    let (connected, peer) = (udp(), udp());
    connected.connect(peer.local_addr().expect("the address")).expect("connect");
    vec![unix_pair(libc::SOCK_DGRAM), (connected.into(), peer.into()), (udp().into(), udp().into())]
}

fn shut_down(socket: &OwnedFd, how: i32) {
    // SAFETY: numbers only. An unconnected socket answers ENOTCONN and is shut down all the same.
    unsafe { libc::shutdown(fd(socket), how) };
}

#[case]
fn shut_down_socket_has_no_more_datagrams(cx: &Context) {
    for (socket, _peer) in datagram_sockets() {
        let (mut ring, mut room) = (cx.ring(8), [0; 8]);
        shut_down(&socket, libc::SHUT_RD);
        for flags in [0, IOSQE_ASYNC] {
            // More than one, so that the socket's single event is not enough.
            for _ in 0..3 {
                assert_eq!(ring.run(sqe::recv(fd(&socket), &mut room, 0).with(flags)), 0);
                assert_eq!(ring.run(sqe::read(fd(&socket), &mut room, 0).with(flags)), 0);
            }
        }
        ring.go_all(&[
            sqe::recv(fd(&socket), &mut room, 0).data(1).with(IOSQE_IO_LINK),
            sqe::recv(fd(&socket), &mut room, libc::MSG_WAITALL).data(2).with(IOSQE_IO_LINK),
            sqe::nop().data(3),
        ]);
        assert_eq!(ring.wait_ordered(3), [(1, 0), (2, 0), (3, -ECANCELED)], "all of nothing is a failure");
    }
}

#[case]
fn shutdown_ends_a_receive_of_datagrams(cx: &Context) {
    for how in [libc::SHUT_RD, libc::SHUT_RDWR] {
        for (socket, _peer) in datagram_sockets() {
            let (mut ring, mut rooms) = (cx.ring(8), [[0; 8]; 2]);
            let [first, second] = &mut rooms;
            let (mut name, mut vectors) = ([7u8; 128], [iovec_mut(second)]);
            let mut message = message(&mut vectors);
            (message.msg_name, message.msg_namelen, message.msg_flags) = (name.as_mut_ptr().cast(), 128, 5);
            ring.go(sqe::recv(fd(&socket), first, 0).data(1));
            ring.go(sqe::recvmsg(fd(&socket), &mut message, 0).data(2));
            ring.expect_quiet();
            shut_down(&socket, how);
            assert_eq!(ring.wait_sorted(2), [(1, 0), (2, 0)]);
            assert_eq!((message.msg_namelen, message.msg_flags), (0, 0));
        }
    }
}

#[case]
fn shut_down_socket_receives_what_was_sent_before(cx: &Context) {
    let ((a, b), mut ring, mut room) = (unix_pair(libc::SOCK_DGRAM), cx.ring(8), [0; 8]);
    put(&a, b"before");
    shut_down(&b, libc::SHUT_RD);
    assert_eq!(ring.run(sqe::recv(fd(&b), &mut room, 0)), 6);
    assert_eq!(ring.run(sqe::recv(fd(&b), &mut room, 0)), 0);
}

#[case]
fn shut_down_socket_and_o_nonblock(cx: &Context) {
    for (socket, _peer) in datagram_sockets() {
        let (mut ring, mut room) = (cx.ring(8), [0; 8]);
        // SAFETY: numbers only; the socket is the case's own.
        assert_eq!(unsafe { libc::fcntl(fd(&socket), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        shut_down(&socket, libc::SHUT_RD);
        assert_eq!(ring.run(sqe::recv(fd(&socket), &mut room, 0)), 0);
        assert_eq!(ring.run(sqe::read(fd(&socket), &mut room, 0)), -EAGAIN);
        let mut vectors = [iovec_mut(&mut room)];
        assert_eq!(ring.run(sqe::recvmsg(fd(&socket), &mut message(&mut vectors), 0)), -EAGAIN);
    }
}

#[case(since = "6.8")]
fn shut_down_socket_takes_a_buffer(cx: &Context) {
    let ((_a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 2, 8);
    shut_down(&b, libc::SHUT_RD);
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 1, 8)), (0, Some(0)));
    assert_eq!(run_taking(&mut ring, read_select(fd(&b), 1, 8)), (0, Some(1)));
    assert_eq!(buffers.head(&ring), 2);
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 1, 8)), (-libc::ENOBUFS, None));
}

#[case(since = "5.19")]
fn multishot_receive_goes_on_after_a_shutdown(cx: &Context) {
    let ((_a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 2, 8);
    ring.go(recv_multishot(fd(&b), 0).data(1));
    shut_down(&b, libc::SHUT_RD);
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}
