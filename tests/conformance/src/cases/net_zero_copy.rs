//! SEND_ZC and SENDMSG_ZC: a CQE with IORING_CQE_F_MORE, and then the notification that the buffer is free again.

use super::prelude::*;
use std::net::{TcpStream, UdpSocket};

topic!(since: "6.0", source: "io_uring_enter(2), io_uring/net.c, io_uring/notif.c");

const FIXED: u16 = IORING_RECVSEND_FIXED_BUF as u16;
const REPORT: u16 = IORING_SEND_ZC_REPORT_USAGE as u16;
const VECTOR: u16 = IORING_SEND_VECTORIZED as u16;
/// The result of a notification with IORING_SEND_ZC_REPORT_USAGE: between sockets of one machine the kernel copies,
/// too.
const COPIED: i32 = IORING_NOTIF_USAGE_ZC_COPIED as i32;

fn send(socket: &impl std::os::fd::AsRawFd, bytes: &[u8]) -> Sqe {
    prep(Opcode::SendZc, fd(socket), address(bytes), bytes.len() as u32, 0)
}

fn sendmsg(socket: &impl std::os::fd::AsRawFd, message: &libc::msghdr) -> Sqe {
    prep(Opcode::SendmsgZc, fd(socket), address(message), 1, 0)
}

fn message(vectors: &[libc::iovec]) -> libc::msghdr {
    // SAFETY: msghdr is plain numbers and pointers, for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_ptr().cast_mut();
    message.msg_iovlen = vectors.len() as _;
    message
}

fn seen(cqe: &Cqe) -> (u64, i32, u32) {
    (cqe.user_data, cqe.res, cqe.flags)
}

/// Submits a request and returns the results of its two CQEs: its own, and the notification's.
fn notified(ring: &mut Ring, sqe: Sqe) -> (i32, i32) {
    ring.go(sqe);
    both(ring)
}

fn both(ring: &mut Ring) -> (i32, i32) {
    let cqe = ring.wait();
    assert_eq!(cqe.flags, IORING_CQE_F_MORE, "a notification is to follow {}", cqe.res);
    let notification = ring.wait();
    assert_eq!((notification.user_data, notification.flags), (cqe.user_data, IORING_CQE_F_NOTIF));
    ring.expect_quiet();
    (cqe.res, notification.res)
}

/// Reads the data at the peer, and runs the ring's deferred work between the reads.
fn arrives(ring: &mut Ring, peer: &mut TcpStream, expected: &[u8]) {
    let (mut room, mut count, start) = (vec![0; expected.len()], 0, std::time::Instant::now());
    peer.set_nonblocking(true).expect("nonblocking");
    while count < room.len() && start.elapsed() < crate::ring::PATIENCE {
        ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0);
        count += peer.read(&mut room[count..]).unwrap_or(0);
    }
    assert_eq!(room, expected);
}

/// Does the same as `notified`, after the peer has read the bytes: until then the kernel may keep the buffer.
fn delivered(ring: &mut Ring, peer: &mut TcpStream, sqe: Sqe, expected: &[u8]) -> i32 {
    ring.go(sqe);
    arrives(ring, peer, expected);
    let (res, notification) = both(ring);
    assert_eq!(res, expected.len() as i32);
    notification
}

#[case]
fn send_is_notified(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    assert_eq!(delivered(&mut ring, &mut b, send(&a, b"hello").data(7), b"hello"), 0);
}

#[case(since = "6.1")]
fn sendmsg_is_notified(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    let vectors = [iovec(b"hello "), iovec(b"world")];
    let message = message(&vectors);
    assert_eq!(delivered(&mut ring, &mut b, sendmsg(&a, &message), b"hello world"), 0);
}

#[case(since = "6.2")]
fn nothing_is_sent_and_notified(cx: &Context) {
    let ((a, _b), mut ring) = (tcp_pair(), cx.ring(8));
    assert_eq!(notified(&mut ring, send(&a, b"")), (0, 0));
    assert_eq!(notified(&mut ring, send(&a, b"").ioprio(REPORT)), (0, COPIED));
    let message = message(&[]);
    assert_eq!(notified(&mut ring, sendmsg(&a, &message)), (0, 0));
}

#[case(since = "6.2")]
fn usage_is_reported_as_copied(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    let big = vec![7; 65536];
    assert_eq!(delivered(&mut ring, &mut b, send(&a, b"hello").ioprio(REPORT), b"hello"), COPIED);
    assert_eq!(delivered(&mut ring, &mut b, send(&a, &big).ioprio(REPORT), &big), COPIED);
    let vectors = [iovec(b"hello")];
    let message = message(&vectors);
    assert_eq!(delivered(&mut ring, &mut b, sendmsg(&a, &message).ioprio(REPORT), b"hello"), COPIED);
}

fn vector_of(socket: &TcpStream, vectors: &[libc::iovec]) -> Sqe {
    prep(Opcode::SendZc, fd(socket), address(vectors), vectors.len() as u32, 0).ioprio(VECTOR)
}

#[case(since = "6.17")]
fn send_of_a_vector(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    let vectors = [iovec(b"one "), iovec(b""), iovec(b"two")];
    assert_eq!(delivered(&mut ring, &mut b, vector_of(&a, &vectors), b"one two"), 0);
    assert_eq!(notified(&mut ring, vector_of(&a, &[])), (0, 0));
}

#[case(since = "6.17")]
fn send_of_a_bad_vector_is_refused(cx: &Context) {
    let ((a, _b), mut ring) = (tcp_pair(), cx.ring(8));
    let vectors = [iovec(b"x")];
    for count in [1025, u32::MAX] {
        assert_eq!(notified(&mut ring, Sqe { len: count, ..vector_of(&a, &vectors) }), (-EINVAL, 0));
    }
    assert_eq!(notified(&mut ring, Sqe { addr: bad_address(), ..vector_of(&a, &vectors) }), (-EFAULT, 0));
    let vectors = [libc::iovec { iov_base: bad_address() as *mut libc::c_void, iov_len: 8 }];
    assert_eq!(notified(&mut ring, vector_of(&a, &vectors)), (-EFAULT, 0));
}

#[case(since = "6.1")]
fn sendmsg_of_a_vector_flag_is_the_same(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    let vectors = [iovec(b"one "), iovec(b"two")];
    let message = message(&vectors);
    assert_eq!(delivered(&mut ring, &mut b, sendmsg(&a, &message).ioprio(VECTOR), b"one two"), 0);
}

#[case]
fn send_to_an_address(cx: &Context) {
    let udp = || UdpSocket::bind("127.0.0.1:0").expect("bind");
    let ((receiver, sender), mut ring) = ((udp(), udp()), cx.ring(8));
    let name = loopback(receiver.local_addr().expect("the address").port());
    let length = size_of::<libc::sockaddr_in>() as u32;
    let to_it = Sqe { off: address(&name), ..send(&sender, b"abc") }.file_index(length);
    ring.go(to_it);
    assert_eq!(receiver.recv(&mut [0; 8]).expect("recv"), 3);
    assert_eq!(both(&mut ring), (3, 0));
    assert_eq!(notified(&mut ring, send(&sender, b"abc")), (-libc::EDESTADDRREQ, 0));
    assert_eq!(notified(&mut ring, to_it.file_index(129)), (-EINVAL, 0));
    assert_eq!(notified(&mut ring, Sqe { off: bad_address(), ..to_it }), (-EFAULT, 0));
    assert_eq!(notified(&mut ring, to_it.file_index(length | 1 << 16)), (-EINVAL, 0));
}

#[case(since = "6.2")]
fn send_from_a_registered_buffer(cx: &Context) {
    let ((a, mut b), mut ring, room) = (tcp_pair(), cx.ring(8), vec![9; 8192]);
    assert_eq!(ring.register_buffers(&[iovec(&room)]), 0);
    let part = &room[4000..4200];
    assert_eq!(delivered(&mut ring, &mut b, send(&a, part).ioprio(FIXED), part), 0);
    assert_eq!(delivered(&mut ring, &mut b, send(&a, &room).ioprio(FIXED | REPORT), &room), COPIED);
}

#[case(since = "6.2")]
fn send_from_no_registered_buffer_is_efault(cx: &Context) {
    let ((a, _b), mut ring) = (tcp_pair(), cx.ring(8));
    assert_eq!(notified(&mut ring, send(&a, b"hello").ioprio(FIXED)), (-EFAULT, 0));
    assert_eq!(notified(&mut ring, send(&a, b"hello").ioprio(FIXED | REPORT)), (-EFAULT, COPIED));
    // The socket is checked first.
    let (_reader, writer) = pipe();
    assert_eq!(notified(&mut ring, send(&writer, b"hello").ioprio(FIXED)), (-ENOTSOCK, 0));
}

#[case]
fn send_outside_the_registered_buffer_is_efault(cx: &Context) {
    let ((a, _b), mut ring, room) = (tcp_pair(), cx.ring(8), vec![9; 8192]);
    assert_eq!(ring.register_buffers(&[iovec(&room[..4096])]), 0);
    assert_eq!(notified(&mut ring, send(&a, &room[4000..4200]).ioprio(FIXED)), (-EFAULT, 0));
    assert_eq!(notified(&mut ring, send(&a, b"hello").ioprio(FIXED)), (-EFAULT, 0));
    assert_eq!(notified(&mut ring, send(&a, &room[..9]).ioprio(FIXED).buffer(1)), (-EFAULT, 0));
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(notified(&mut ring, send(&a, b"hello").ioprio(FIXED).with(flags)), (-EFAULT, 0));
    }
}

#[case(since = "6.17", until = "7.3")]
fn send_of_a_vector_from_a_registered_buffer_is_einval(cx: &Context) {
    let ((a, _b), mut ring, room) = (tcp_pair(), cx.ring(8), vec![9; 4096]);
    assert_eq!(ring.register_buffers(&[iovec(&room)]), 0);
    let vectors = [iovec(&room[..10])];
    assert_eq!(notified(&mut ring, vector_of(&a, &vectors).ioprio(VECTOR | FIXED)), (-EINVAL, 0));
}

#[case(since = "6.17", from = "7.3")]
fn send_of_a_vector_from_a_registered_buffer(cx: &Context) {
    let ((a, mut b), mut ring, room) = (tcp_pair(), cx.ring(8), vec![9; 4096]);
    assert_eq!(ring.register_buffers(&[iovec(&room)]), 0);
    let vectors = [iovec(&room[..10]), iovec(&room[4000..])];
    assert_eq!(delivered(&mut ring, &mut b, vector_of(&a, &vectors).ioprio(VECTOR | FIXED), &[9; 106]), 0);
    let outside = [iovec(&b"hello"[..])];
    assert_eq!(notified(&mut ring, vector_of(&a, &outside).ioprio(VECTOR | FIXED)), (-EFAULT, 0));
}

#[case(since = "6.1")]
fn sendmsg_from_a_registered_buffer(cx: &Context) {
    let ((a, mut b), mut ring, room) = (tcp_pair(), cx.ring(8), vec![9; 8192]);
    assert_eq!(ring.register_buffers(&[iovec(&room)]), 0);
    let vectors = [iovec(&room[..10]), iovec(&room[4000..4200])];
    let message = message(&vectors);
    assert_eq!(delivered(&mut ring, &mut b, sendmsg(&a, &message).ioprio(FIXED), &[9; 210]), 0);
}

#[case(since = "6.1")]
fn sendmsg_from_no_registered_buffer_is_efault(cx: &Context) {
    let ((a, _b), mut ring) = (tcp_pair(), cx.ring(8));
    let vectors = [iovec(b"hello")];
    let message = message(&vectors);
    assert_eq!(notified(&mut ring, sendmsg(&a, &message).ioprio(FIXED)), (-EFAULT, 0));
    // Either the buffer or the socket is checked first.
    let (_reader, writer) = pipe();
    let first = if cx.answers_since("7.3") { -ENOTSOCK } else { -EFAULT };
    assert_eq!(notified(&mut ring, sendmsg(&writer, &message).ioprio(FIXED)), (first, 0));
}

#[case(since = "6.1")]
fn sendmsg_outside_the_registered_buffer_is_efault(cx: &Context) {
    let ((a, _b), mut ring, room) = (tcp_pair(), cx.ring(8), vec![9; 4096]);
    assert_eq!(ring.register_buffers(&[iovec(&room)]), 0);
    let vectors = [iovec(&room[..10]), iovec(b"outside")];
    let message = message(&vectors);
    assert_eq!(notified(&mut ring, sendmsg(&a, &message).ioprio(FIXED)), (-EFAULT, 0));
    assert_eq!(notified(&mut ring, sendmsg(&a, &message).ioprio(FIXED).with(IOSQE_ASYNC)), (-EFAULT, 0));
}

#[case(since = "6.1")]
fn sendmsg_of_an_empty_range_of_a_registered_buffer_is_efault(cx: &Context) {
    let ((a, _b), mut ring, room) = (tcp_pair(), cx.ring(8), vec![9; 4096]);
    assert_eq!(ring.register_buffers(&[iovec(&room)]), 0);
    let vectors = [iovec(&room[..10]), iovec(&room[..0])];
    let (some, none) = (message(&vectors), message(&[]));
    assert_eq!(notified(&mut ring, sendmsg(&a, &some).ioprio(FIXED)), (-EFAULT, 0));
    assert_eq!(notified(&mut ring, sendmsg(&a, &none).ioprio(FIXED)), (0, 0));
}

#[case]
fn buffer_index_without_flag_is_ignored(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    assert_eq!(delivered(&mut ring, &mut b, send(&a, b"hello").buffer(3), b"hello"), 0);
}

#[case(since = "6.2")]
fn async_send_is_notified(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    assert_eq!(delivered(&mut ring, &mut b, send(&a, b"hello").with(IOSQE_ASYNC), b"hello"), 0);
    let vectors = [iovec(b"hello")];
    let message = message(&vectors);
    let asynchronous = sendmsg(&a, &message).with(IOSQE_ASYNC).ioprio(REPORT);
    assert_eq!(delivered(&mut ring, &mut b, asynchronous, b"hello"), COPIED);
}

#[case(since = "6.1")]
fn poll_first(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    let first = IORING_RECVSEND_POLL_FIRST as u16;
    assert_eq!(delivered(&mut ring, &mut b, send(&a, b"hello").ioprio(first), b"hello"), 0);
    let vectors = [iovec(b"hello")];
    let message = message(&vectors);
    assert_eq!(delivered(&mut ring, &mut b, sendmsg(&a, &message).ioprio(first), b"hello"), 0);
    let dontwait = send(&a, b"hello").ioprio(first).op_flags(libc::MSG_DONTWAIT as u32);
    assert_eq!(notified(&mut ring, dontwait), (-EAGAIN, 0));
}

#[case(since = "6.2")]
fn error_is_notified(cx: &Context) {
    let ((a, _b), mut ring) = (tcp_pair(), cx.ring(8));
    let ((_reader, writer), vectors) = (pipe(), [iovec(b"x")]);
    let message = message(&vectors);
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(notified(&mut ring, send(&writer, b"x").with(flags)), (-ENOTSOCK, 0));
        assert_eq!(notified(&mut ring, sendmsg(&writer, &message).with(flags)), (-ENOTSOCK, 0));
        assert_eq!(notified(&mut ring, Sqe { fd: -1, ..send(&a, b"x") }.with(flags)), (-EBADF, 0));
        assert_eq!(notified(&mut ring, Sqe { addr: bad_address(), ..send(&a, b"x") }.with(flags)), (-EFAULT, 0));
    }
    let registered = Sqe { fd: 3, ..send(&a, b"x") }.with(IOSQE_FIXED_FILE).ioprio(REPORT);
    assert_eq!(notified(&mut ring, registered), (-EBADF, COPIED));
}

/// If no data could be read, nothing was copied. A request that is refused earlier is reported as copied.
#[case(since = "6.2")]
fn bad_data_is_not_reported_as_copied(cx: &Context) {
    let ((a, _b), udp, mut ring) = (tcp_pair(), UdpSocket::bind("127.0.0.1:0").expect("bind"), cx.ring(8));
    udp.connect(udp.local_addr().expect("the address")).expect("connect");
    let pages = pages(2);
    protect(&pages[4096..], libc::PROT_NONE);
    let bad = libc::iovec { iov_base: bad_address() as *mut libc::c_void, iov_len: 8 };
    let (vectors, alone) = ([iovec(b"abc"), bad], [bad]);
    let (half, all) = (message(&vectors), message(&alone));
    for flags in [0, IOSQE_ASYNC] {
        for sqe in [
            Sqe { addr: bad_address(), ..send(&a, b"x") },
            Sqe { addr: address(pages) + 90, len: 8000, ..send(&a, b"x") },
            Sqe { addr: bad_address(), ..send(&udp, b"x") },
            sendmsg(&a, &half),
            sendmsg(&a, &all),
        ] {
            assert_eq!(notified(&mut ring, sqe.with(flags).ioprio(REPORT)), (-EFAULT, 0));
        }
        let header = Sqe { addr: bad_address(), ..sendmsg(&a, &half) };
        assert_eq!(notified(&mut ring, header.with(flags).ioprio(REPORT)), (-EFAULT, COPIED));
    }
    assert_eq!(ring.run(sqe::shutdown(fd(&a), libc::SHUT_WR)), 0);
    let shut_down = Sqe { addr: bad_address(), ..send(&a, b"x") };
    assert_eq!(notified(&mut ring, shut_down.ioprio(REPORT)), (-EPIPE, COPIED));
}

#[case(since = "6.2")]
fn refused_is_notified(cx: &Context) {
    let ((a, _b), mut ring) = (tcp_pair(), cx.ring(8));
    let multishot = IORING_RECV_MULTISHOT as u16;
    for unknown in [multishot, IORING_RECVSEND_BUNDLE as u16, 1 << 6, 1 << 15] {
        assert_eq!(notified(&mut ring, send(&a, b"x").ioprio(unknown)), (-EINVAL, 0));
        assert_eq!(notified(&mut ring, send(&a, b"x").ioprio(unknown | REPORT)), (-EINVAL, 0));
    }
    let vectors = [iovec(b"x")];
    let message = message(&vectors);
    let bad = Sqe { addr: bad_address(), ..sendmsg(&a, &message) };
    assert_eq!(notified(&mut ring, bad), (-EFAULT, 0));
    assert_eq!(notified(&mut ring, bad.ioprio(REPORT)), (-EFAULT, COPIED));
    assert_eq!(notified(&mut ring, Sqe { off: 1, ..sendmsg(&a, &message) }), (-EINVAL, 0));
    assert_eq!(notified(&mut ring, sendmsg(&a, &message).file_index(1)), (-EINVAL, 0));
}

#[case]
fn refused_at_first_sight_is_not_notified(cx: &Context) {
    let ((a, _b), mut ring) = (tcp_pair(), cx.ring(8));
    let vectors = [iovec(b"x")];
    let message = message(&vectors);
    for sqe in [send(&a, b"x"), sendmsg(&a, &message)] {
        for (refused, error) in [
            (Sqe { pad2: 1, ..sqe }, EINVAL),
            (sqe.with(IOSQE_CQE_SKIP_SUCCESS), EINVAL),
            (sqe.with(IOSQE_BUFFER_SELECT), EOPNOTSUPP),
            (sqe.with(1 << 7), EINVAL),
            (Sqe { personality: 5, ..sqe }, EINVAL),
        ] {
            ring.go(refused.data(3));
            assert_eq!(seen(&ring.wait()), (3, -error, 0));
            ring.expect_quiet();
        }
    }
    if !cx.answers_since("7.3") {
        ring.go(Sqe { addr3: 1, ..send(&a, b"x") }.data(3));
        assert_eq!(seen(&ring.wait()), (3, -EINVAL, 0));
        ring.expect_quiet();
    }
}

/// Submits a request whose notification has a `user_data` of its own, and returns the results of both.
fn notified_as(ring: &mut Ring, sqe: Sqe, name: u64) -> (i32, i32) {
    ring.go(Sqe { addr3: name, ..sqe.data(3) });
    let (cqe, notification) = (ring.wait(), ring.wait());
    assert_eq!((cqe.user_data, cqe.flags), (3, IORING_CQE_F_MORE));
    assert_eq!((notification.user_data, notification.flags), (name, IORING_CQE_F_NOTIF));
    ring.expect_quiet();
    (cqe.res, notification.res)
}

#[case(since = "6.1", from = "7.3")]
fn notification_with_user_data_of_its_own(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    let vectors = [iovec(b"xy")];
    let message = message(&vectors);
    assert_eq!(notified_as(&mut ring, send(&a, b"x"), 77), (1, 0));
    assert_eq!(notified_as(&mut ring, send(&a, b"x").with(IOSQE_ASYNC), 77), (1, 0));
    assert_eq!(notified_as(&mut ring, send(&a, b"x").ioprio(REPORT), 78), (1, COPIED));
    assert_eq!(notified_as(&mut ring, sendmsg(&a, &message), u64::MAX), (2, 0));
    arrives(&mut ring, &mut b, b"xxxxy");
}

#[case(since = "6.1", from = "7.3")]
fn notification_of_a_failure_with_user_data_of_its_own(cx: &Context) {
    let ((a, _b), (c, _d), mut ring) = (tcp_pair(), unix_pair(libc::SOCK_STREAM), cx.ring(8));
    assert_eq!(notified_as(&mut ring, send(&a, b"x").ioprio(2), 77), (-EINVAL, 0));
    assert_eq!(notified_as(&mut ring, send(&a, b"x").ioprio(FIXED), 77), (-EFAULT, 0));
    assert_eq!(notified_as(&mut ring, send(&c, b"x"), 77), (-EOPNOTSUPP, 0));
    let bad = Sqe { addr: bad_address(), ..send(&a, b"x") };
    assert_eq!(notified_as(&mut ring, bad, 77), (-EFAULT, 0));
    ring.go(Sqe { addr3: 77, ..send(&a, b"x").with(IOSQE_CQE_SKIP_SUCCESS) }.data(3));
    assert_eq!(seen(&ring.wait()), (3, -EINVAL, 0));
    ring.expect_quiet();
}

#[case(since = "6.1", from = "7.3")]
fn notification_of_a_refused_link_with_user_data_of_its_own(cx: &Context) {
    let ((a, _b), mut ring) = (tcp_pair(), cx.ring(8));
    let refused = Sqe { addr3: 77, ..send(&a, b"x").ioprio(2) };
    ring.go_all(&[sqe::nop().with(IOSQE_IO_LINK).data(1), refused.data(2)]);
    let mut all: Vec<_> = (0..3).map(|_| seen(&ring.wait())).collect();
    all.sort_unstable();
    assert_eq!(all, [(1, -ECANCELED, 0), (2, -EINVAL, 0), (77, 0, IORING_CQE_F_NOTIF)]);
}

#[case(since = "6.1")]
fn socket_of_another_kind_is_eopnotsupp(cx: &Context) {
    let mut ring = cx.ring(8);
    let vectors = [iovec(b"x")];
    let message = message(&vectors);
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        let (a, _b) = unix_pair(kind);
        for flags in [0, IOSQE_ASYNC] {
            assert_eq!(notified(&mut ring, send(&a, b"x").with(flags)), (-EOPNOTSUPP, 0));
            assert_eq!(notified(&mut ring, sendmsg(&a, &message).with(flags)), (-EOPNOTSUPP, 0));
        }
    }
    // Sockets of these kinds are served: the error names what they lack.
    for (domain, kind, error) in [
        (libc::AF_INET, libc::SOCK_STREAM, EPIPE),
        (libc::AF_INET6, libc::SOCK_STREAM, EPIPE),
        (libc::AF_INET, libc::SOCK_DGRAM, libc::EDESTADDRREQ),
        (libc::AF_INET6, libc::SOCK_DGRAM, libc::EDESTADDRREQ),
    ] {
        assert_eq!(notified(&mut ring, send(&sys::socket(domain, kind), b"x")), (-error, 0));
    }
}

#[case(since = "6.2")]
fn reset_connection_is_notified(cx: &Context) {
    count_signal(libc::SIGPIPE);
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    (&a).write_all(b"unread").expect("write");
    drop(b);
    let mut reset = libc::pollfd { fd: fd(&a), events: 0, revents: 0 };
    // SAFETY: one entry is passed, and it lives until the call returns.
    assert_eq!(unsafe { libc::poll(&mut reset, 1, 10_000) }, 1, "the reset came");
    assert_eq!(notified(&mut ring, send(&a, b"x")), (-libc::ECONNRESET, 0));
    assert_eq!(notified(&mut ring, send(&a, b"x").ioprio(REPORT)), (-EPIPE, COPIED));
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 0);
}

/// A pair whose first socket takes no more.
fn full_pair() -> (TcpStream, TcpStream) {
    let (a, b) = tcp_pair();
    let chunk = [1; 4096];
    // Data for which the peer has room moves a little later: with its delayed ACK, or with the first probe of its
    // window. The probe comes after 200 ms and fills the rest of the window.
    let mut rounds_without = 0;
    while rounds_without < 6 {
        rounds_without += 1;
        // SAFETY: the chunk lives until each call returns.
        while unsafe { libc::send(fd(&a), chunk.as_ptr().cast(), 4096, libc::MSG_DONTWAIT) } > 0 {
            rounds_without = 0;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    (a, b)
}

/// Reads until `ring` has a CQE. Returns the number of bytes.
fn drain_until_completion(ring: &mut Ring, peer: &TcpStream) -> usize {
    peer.set_nonblocking(true).expect("nonblocking");
    let (mut peer, mut room, mut total) = (peer, vec![0; 1 << 16], 0);
    let start = std::time::Instant::now();
    while ring.cq_ready() == 0 && start.elapsed() < crate::ring::PATIENCE {
        total += peer.read(&mut room).unwrap_or(0);
        ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0);
    }
    total
}

#[case]
fn full_socket_waits(cx: &Context) {
    let ((a, b), mut ring) = (full_pair(), cx.ring(8));
    ring.go(send(&a, b"tail"));
    ring.expect_quiet();
    drain_until_completion(&mut ring, &b);
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags), (4, IORING_CQE_F_MORE));
    drop(b);
    assert_eq!(ring.wait().flags, IORING_CQE_F_NOTIF);
}

#[case]
fn full_socket_dontwait_is_eagain(cx: &Context) {
    let ((a, _b), mut ring) = (full_pair(), cx.ring(8));
    let sqe = send(&a, b"x").op_flags(libc::MSG_DONTWAIT as u32);
    assert_eq!(notified(&mut ring, sqe), (-EAGAIN, 0));
}

#[case]
fn waitall_sends_all(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    let content = vec![7; 6 << 20];
    ring.go(send(&a, &content).op_flags(libc::MSG_WAITALL as u32));
    let arrived = drain_until_completion(&mut ring, &b);
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags), (6 << 20, IORING_CQE_F_MORE));
    assert!(arrived > 0, "it did not fit at once");
    drop(b);
    assert_eq!(ring.wait().flags, IORING_CQE_F_NOTIF);
}

#[case]
fn negative_length_is_all_there_is(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    // Nothing is mapped after the page.
    // SAFETY: a new mapping replaces nothing, and its second half, which has no other user, is unmapped again.
    let page = unsafe {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let page = libc::mmap(std::ptr::null_mut(), 8192, protection, flags, -1, 0);
        assert_eq!(libc::mprotect(page.byte_add(4096), 4096, libc::PROT_NONE), 0);
        page as u64
    };
    ring.go(Sqe { addr: page, len: u32::MAX, ..send(&a, b"") });
    let cqe = ring.wait();
    assert!(cqe.res == 4096 || cqe.res == -EFAULT, "{}", cqe.res);
    assert_eq!(cqe.flags, IORING_CQE_F_MORE);
    drop(b);
    assert_eq!(ring.wait().flags, IORING_CQE_F_NOTIF);
}

/// Waits for all CQEs. Returns the user_data, result and flags of the requests' own CQEs, and the user_data of the
/// notifications.
fn sorted(ring: &mut Ring, own: usize, notifications: usize) -> (Vec<(u64, i32, u32)>, Vec<u64>) {
    let cqes = ring.wait_all(own + notifications);
    ring.expect_quiet();
    let is_own = |cqe: &&Cqe| cqe.flags & IORING_CQE_F_NOTIF == 0;
    let mut results: Vec<_> = cqes.iter().filter(is_own).map(seen).collect();
    let mut others: Vec<_> = cqes.iter().filter(|cqe| !is_own(cqe)).map(|cqe| cqe.user_data).collect();
    results.sort();
    others.sort();
    (results, others)
}

#[case]
fn chain_goes_on(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    let more = IORING_CQE_F_MORE;
    ring.go_all(&[send(&a, b"hello").with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    arrives(&mut ring, &mut b, b"hello");
    assert_eq!(sorted(&mut ring, 2, 1), (vec![(1, 5, more), (2, 0, 0)], vec![1]));
    ring.go_all(&[sqe::nop().with(IOSQE_IO_LINK).data(1), send(&a, b"hello").data(2)]);
    arrives(&mut ring, &mut b, b"hello");
    assert_eq!(sorted(&mut ring, 2, 1), (vec![(1, 0, 0), (2, 5, more)], vec![2]));
}

#[case]
fn chain_that_breaks_notifies_its_members(cx: &Context) {
    let ((a, _b), mut ring) = (tcp_pair(), cx.ring(8));
    let bad = Sqe { fd: -1, ..send(&a, b"x") }.with(IOSQE_IO_LINK);
    ring.go_all(&[bad.data(1), send(&a, b"x").with(IOSQE_IO_LINK).data(2), sqe::nop().data(3)]);
    let expected = vec![(1, -EBADF, IORING_CQE_F_MORE), (2, -ECANCELED, 0), (3, -ECANCELED, 0)];
    assert_eq!(sorted(&mut ring, 3, 2), (expected, vec![1, 2]));
}

#[case]
fn refused_member_of_a_chain_is_notified(cx: &Context) {
    let ((a, _b), mut ring) = (tcp_pair(), cx.ring(8));
    let (refused, more) = (send(&a, b"x").ioprio(1 << 6), IORING_CQE_F_MORE);
    ring.go_all(&[sqe::nop().with(IOSQE_IO_LINK).data(1), refused.data(2)]);
    assert_eq!(sorted(&mut ring, 2, 1), (vec![(1, -ECANCELED, 0), (2, -EINVAL, 0)], vec![2]));
    ring.go_all(&[refused.with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(sorted(&mut ring, 2, 1), (vec![(1, -EINVAL, more), (2, -ECANCELED, 0)], vec![1]));
    ring.go_all(&[send(&a, b"x").with(IOSQE_IO_LINK).data(1), Sqe { opcode: 255, ..sqe::nop() }.data(2)]);
    assert_eq!(sorted(&mut ring, 2, 1), (vec![(1, -ECANCELED, more), (2, -EINVAL, 0)], vec![1]));
}

#[case]
fn quiet_member_of_a_chain_is_notified(cx: &Context) {
    let ((a, _b), mut ring) = (tcp_pair(), cx.ring(8));
    let bad = sqe::send(-1, b"x", 0).with(IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS);
    ring.go_all(&[bad.data(1), send(&a, b"x").data(2)]);
    assert_eq!(sorted(&mut ring, 1, 1), (vec![(1, -EBADF, 0)], vec![2]));
}

#[case]
fn hard_link_goes_on(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    let bad = Sqe { fd: -1, ..send(&a, b"x") }.with(IOSQE_IO_HARDLINK);
    ring.go_all(&[bad.data(1), send(&a, b"x").data(2)]);
    arrives(&mut ring, &mut b, b"x");
    let more = IORING_CQE_F_MORE;
    assert_eq!(sorted(&mut ring, 2, 2), (vec![(1, -EBADF, more), (2, 1, more)], vec![1, 2]));
}

#[case]
fn cancelled_is_notified(cx: &Context) {
    let ((a, _b), mut ring) = (full_pair(), cx.ring(8));
    ring.go(send(&a, b"x").data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(sorted(&mut ring, 2, 1), (vec![(1, -ECANCELED, IORING_CQE_F_MORE), (2, 0, 0)], vec![1]));
}

#[case(undisturbed)]
fn link_timeout_is_notified(cx: &Context) {
    let ((a, _b), mut ring, time) = (full_pair(), cx.ring(8), ms(20));
    ring.go_all(&[send(&a, b"x").with(IOSQE_IO_LINK).data(1), sqe::link_timeout(&time).data(2)]);
    let expected = vec![(1, -ECANCELED, IORING_CQE_F_MORE), (2, -ETIME, 0)];
    assert_eq!(sorted(&mut ring, 2, 1), (expected, vec![1]));
}

#[case]
fn two_requests(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    ring.go_all(&[send(&a, b"one").data(1), send(&a, b"two").data(2), sqe::nop().data(3)]);
    arrives(&mut ring, &mut b, b"onetwo");
    let more = IORING_CQE_F_MORE;
    assert_eq!(sorted(&mut ring, 3, 2), (vec![(1, 3, more), (2, 3, more), (3, 0, 0)], vec![1, 2]));
}

#[case]
fn overflow_keeps_both(cx: &Context) {
    let ((a, _b), mut ring) = (tcp_pair(), cx.ring(1));
    for number in 0..6 {
        ring.go(Sqe { fd: -1, ..send(&a, b"x") }.data(number));
    }
    let (results, notifications) = sorted(&mut ring, 6, 6);
    assert_eq!(results, (0..6).map(|number| (number, -EBADF, IORING_CQE_F_MORE)).collect::<Vec<_>>());
    assert_eq!(notifications, [0, 1, 2, 3, 4, 5]);
}

#[case]
fn ring_closes_while_it_waits(cx: &Context) {
    let ((a, b), mut ring) = (full_pair(), cx.ring(8));
    ring.go(send(&a, b"x"));
    ring.expect_quiet();
    drop(ring);
    drop(a);
    // The request ended with the ring: otherwise the peer would never see the end.
    let (mut b, mut room) = (b, vec![0; 1 << 16]);
    while b.read(&mut room).expect("read") != 0 {}
}

/// Task work posts the notification, after the rest of the submission.
#[case(undisturbed)]
fn failed_send_is_notified_after_its_submission(cx: &Context) {
    let ((a, _b), mut ring) = (pair(), cx.ring(4));
    let refused = send(&a, b"x").with(IOSQE_IO_LINK);
    ring.go_all(&[refused.data(1), sqe::nop().data(2)]);
    let order = [(1, -EOPNOTSUPP), (2, -ECANCELED), (1, 0)];
    assert_eq!(ring.wait_ordered(3), order);
}
