//! SEND, RECV, SENDMSG and RECVMSG.

use super::prelude::*;

topic!(since: "5.3", source: "io_uring_enter(2), io_uring/net.c");

fn drain(socket: &OwnedFd) -> usize {
    let (mut room, mut total) = (vec![0; 65536], 0);
    loop {
        // SAFETY: the buffer has the length passed.
        match unsafe { libc::recv(fd(socket), room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT) } {
            count if count > 0 => total += count as usize,
            _ => return total,
        }
    }
}

#[case(since = "5.6")]
fn send_and_recv(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (pair(), cx.ring(4), [0; 8]);
    assert_eq!(ring.run(sqe::send(fd(&a), b"hello", 0)), 5);
    assert_eq!(ring.run(sqe::recv(fd(&b), &mut buffer, 0)), 5);
    assert_eq!(&buffer[..5], b"hello");
}

fn recv_pends(cx: &Context, (a, b): (OwnedFd, OwnedFd), sqe_flags: u8, ioprio: u16) {
    let (mut ring, mut buffer) = (cx.ring(4), [0; 8]);
    ring.go(sqe::recv(fd(&a), &mut buffer, 0).with(sqe_flags).ioprio(ioprio));
    ring.expect_quiet();
    put(&b, b"abc");
    assert_eq!(ring.wait().res, 3);
    assert_eq!(&buffer[..3], b"abc");
}

#[case(since = "5.6")]
fn recv_waits_for_data(cx: &Context) {
    recv_pends(cx, pair(), 0, 0);
}

#[case(since = "5.6")]
fn async_recv_waits(cx: &Context) {
    recv_pends(cx, pair(), IOSQE_ASYNC, 0);
}

#[case(since = "5.19")]
fn recv_poll_first_waits(cx: &Context) {
    recv_pends(cx, pair(), 0, IORING_RECVSEND_POLL_FIRST as u16);
}

#[case(since = "5.6")]
fn recv_on_a_nonblocking_socket(cx: &Context) {
    recv_pends(cx, unix_pair(libc::SOCK_STREAM | libc::SOCK_NONBLOCK), 0, 0);
}

#[case(since = "5.6")]
fn recv_at_the_end_is_zero(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (pair(), cx.ring(4), [0; 8]);
    ring.go(sqe::recv(fd(&a), &mut buffer, 0));
    ring.expect_quiet();
    drop(b);
    assert_eq!(ring.wait().res, 0);
}

#[case]
fn recv_dontwait_is_eagain(cx: &Context) {
    let (a, _b) = pair();
    assert_eq!(cx.ring(4).run(sqe::recv(fd(&a), &mut [0; 8], libc::MSG_DONTWAIT)), -EAGAIN);
}

#[case(since = "5.19")]
fn recv_peek_leaves_the_data(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    put(&b, b"abc");
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [0; 8], libc::MSG_PEEK)), 3);
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [0; 8], 0)), 3);
}

#[case(since = "5.19")]
fn recv_takes_what_is_there(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    put(&b, b"abc");
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [0; 2], 0)), 2);
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [0; 2], 0)), 1);
}

#[case(since = "5.6")]
fn recv_waitall_waits_for_all(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (pair(), cx.ring(4), [0; 8]);
    ring.go(sqe::recv(fd(&a), &mut buffer, libc::MSG_WAITALL));
    put(&b, b"abc");
    ring.expect_quiet();
    put(&b, b"defgh");
    assert_eq!(ring.wait().res, 8);
    assert_eq!(&buffer, b"abcdefgh");
}

#[case(since = "5.6")]
fn recv_waitall_at_the_end_is_short(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (pair(), cx.ring(4), [0; 8]);
    ring.go(sqe::recv(fd(&a), &mut buffer, libc::MSG_WAITALL));
    put(&b, b"abc");
    ring.expect_quiet();
    drop(b);
    assert_eq!(ring.wait().res, 3);
}

#[case(since = "5.6")]
fn recv_of_a_short_datagram_buffer_is_cut(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(4));
    put(&b, b"abcdef");
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [0; 2], 0)), 2);
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [0; 2], libc::MSG_DONTWAIT)), -EAGAIN);
}

#[case(since = "5.6")]
fn recv_trunc_tells_the_real_length(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(4));
    put(&b, b"abcdef");
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [0; 2], libc::MSG_TRUNC)), 6);
}

#[case(since = "5.19")]
fn recv_poll_first_of_data_that_was_seen(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (pair(), cx.ring(4), [0; 2]);
    ring.go(sqe::recv(fd(&a), &mut buffer, 0));
    ring.expect_quiet();
    put(&b, b"abcdef");
    assert_eq!(ring.wait().res, 2);
    for _ in 0..2 {
        let again = sqe::recv(fd(&a), &mut buffer, 0).ioprio(IORING_RECVSEND_POLL_FIRST as u16);
        assert_eq!(ring.run(again), 2);
    }
}

#[case(since = "5.19")]
fn recv_poll_first_of_ready_data(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    put(&b, b"abc");
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [0; 8], 0).ioprio(IORING_RECVSEND_POLL_FIRST as u16)), 3);
}

#[case(since = "5.19")]
fn recv_of_nothing_is_zero(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    put(&b, b"abc");
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [], 0)), 0);
}

#[case]
fn recv_bad_buffer_is_efault(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    put(&b, b"abc");
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(ring.run(prep(Opcode::Recv, fd(&a), bad_address(), 8, 0).with(flags)), -EFAULT);
    }
}

#[case]
fn recv_of_a_file_is_enotsock(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::recv(fd(&reader), &mut [0; 8], 0)), -ENOTSOCK);
}

#[case]
fn recv_bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::recv(-1, &mut [0; 8], 0)), -EBADF);
}

#[case]
fn recv_unknown_ioprio_flag_is_einval(cx: &Context) {
    let (a, _b) = pair();
    assert_eq!(cx.ring(4).run(sqe::recv(fd(&a), &mut [0; 8], 0).ioprio(1 << 12)), -EINVAL);
    assert_eq!(cx.ring(4).run(sqe::send(fd(&a), &[0; 8], 0).ioprio(1 << 12)), -EINVAL);
}

#[case]
fn recv_unconnected_is_enotconn(cx: &Context) {
    let socket = sys::socket(libc::AF_INET, libc::SOCK_STREAM);
    assert_eq!(cx.ring(4).run(sqe::recv(fd(&socket), &mut [0; 8], 0)), -ENOTCONN);
}

#[case]
fn recv_sees_a_reset(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (tcp_pair(), cx.ring(4), [0; 8]);
    ring.go(sqe::recv(fd(&a), &mut buffer, 0));
    ring.expect_quiet();
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>() as u32;
    // SAFETY: one linger structure is read.
    let answer =
        unsafe { libc::setsockopt(fd(&b), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size) };
    assert_eq!(answer, 0);
    drop(b);
    assert_eq!(ring.wait().res, -libc::ECONNRESET);
}

#[case(since = "5.6")]
fn send_to_a_full_buffer_waits(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    fill(&a);
    ring.go(sqe::send(fd(&a), b"tail", 0));
    ring.expect_quiet();
    drain(&b);
    assert_eq!(ring.wait().res, 4);
}

#[case]
fn send_dontwait_to_a_full_buffer_is_eagain(cx: &Context) {
    let (a, _b) = pair();
    fill(&a);
    assert_eq!(cx.ring(4).run(sqe::send(fd(&a), b"tail", libc::MSG_DONTWAIT)), -EAGAIN);
}

#[case(since = "5.6")]
fn send_waitall_goes_on(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let content = vec![7; 2 << 20];
    ring.go(sqe::send(fd(&a), &content, libc::MSG_WAITALL));
    let mut total = 0;
    while total < content.len() {
        ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0);
        total += drain(&b);
    }
    assert_eq!(ring.wait().res, 2 << 20);
}

#[case(since = "5.6")]
fn send_big_is_short_or_whole(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let content = vec![7; 2 << 20];
    let res = ring.run(sqe::send(fd(&a), &content, 0));
    assert!(res > 0 && res < 2 << 20, "a stream takes what fits: {res}");
    assert_eq!(drain(&b), res as usize);
}

#[case]
fn send_without_peer_is_epipe_without_signal(cx: &Context) {
    count_signal(libc::SIGPIPE);
    let (a, _) = pair();
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(sqe::send(fd(&a), b"x", libc::MSG_NOSIGNAL)), -EPIPE);
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!(ring.run(sqe::send(fd(&a), b"x", 0)), -EPIPE);
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 0, "SEND never raises it");
}

#[case]
fn send_bad_buffer_is_efault(cx: &Context) {
    let ((a, _b), mut ring) = (pair(), cx.ring(4));
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(ring.run(prep(Opcode::Send, fd(&a), bad_address(), 8, 0).with(flags)), -EFAULT);
    }
}

#[case]
fn send_of_a_file_is_enotsock(cx: &Context) {
    let (_reader, writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::send(fd(&writer), b"x", 0)), -ENOTSOCK);
}

#[case(since = "5.19")]
fn send_poll_first(cx: &Context) {
    let ((a, _b), mut ring) = (pair(), cx.ring(4));
    for _ in 0..3 {
        assert_eq!(ring.run(sqe::send(fd(&a), b"abc", 0).ioprio(IORING_RECVSEND_POLL_FIRST as u16)), 3);
    }
}

fn udp() -> (std::net::UdpSocket, libc::sockaddr_in) {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
    let port = socket.local_addr().expect("the address").port();
    (socket, loopback(port))
}

#[case(since = "5.19")]
fn messages_poll_first(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (pair(), cx.ring(4), [0; 4]);
    let (mut sent, mut into) = ([iovec(b"abcd")], [iovec_mut(&mut buffer)]);
    let first = IORING_RECVSEND_POLL_FIRST as u16;
    let mut received = message(&mut into);
    ring.go(sqe::recvmsg(fd(&a), &mut received, 0).ioprio(first).data(1));
    ring.expect_quiet();
    ring.go(sqe::sendmsg(fd(&b), &message(&mut sent), 0).ioprio(first).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, 4), (2, 4)]);
    assert_eq!(&buffer, b"abcd");
}

#[case(since = "5.6")]
fn send_to_an_address(cx: &Context) {
    let ((receiver, name), (sender, _)) = (udp(), udp());
    let length = size_of::<libc::sockaddr_in>() as u32;
    let send = Sqe { off: address(&name), ..sqe::send(fd(&sender), b"abc", 0) }.file_index(length);
    assert_eq!(cx.ring(4).run(send), 3);
    assert_eq!(receiver.recv(&mut [0; 8]).expect("recv"), 3);
}

#[case]
fn send_unconnected_datagram_is_edestaddrreq(cx: &Context) {
    let (sender, _) = udp();
    assert_eq!(cx.ring(4).run(sqe::send(fd(&sender), b"abc", 0)), -libc::EDESTADDRREQ);
}

#[case]
fn send_too_big_datagram_is_emsgsize(cx: &Context) {
    let ((receiver, _), (sender, _)) = (udp(), udp());
    sender.connect(receiver.local_addr().expect("the address")).expect("connect");
    assert_eq!(cx.ring(4).run(sqe::send(fd(&sender), &[0; 70_000], 0)), -EMSGSIZE);
}

#[case(since = "5.6")]
fn sendmsg_gathers(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (pair(), cx.ring(4), [0; 8]);
    let mut vectors = [iovec(b"ab"), iovec(b"cde")];
    let message = message(&mut vectors);
    assert_eq!(ring.run(sqe::sendmsg(fd(&a), &message, 0)), 5);
    assert_eq!(ring.run(sqe::recv(fd(&b), &mut buffer, 0)), 5);
    assert_eq!(&buffer[..5], b"abcde");
}

/// Room for one control message with one descriptor, aligned as a header must be.
#[repr(C, align(8))]
struct Control([u8; 24]);

fn rights(file: i32) -> Control {
    let mut control = Control([0; 24]);
    control.0[..8].copy_from_slice(&20u64.to_ne_bytes());
    control.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
    control.0[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
    control.0[16..20].copy_from_slice(&file.to_ne_bytes());
    control
}

#[case]
fn sendmsg_passes_a_descriptor(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (pair(), cx.ring(4), [0; 8]);
    let (mut reader, writer) = pipe();
    let (mut control, mut vectors) = (rights(fd(&writer)), [iovec(b"x")]);
    let mut outgoing = message(&mut vectors);
    (outgoing.msg_control, outgoing.msg_controllen) = (control.0.as_mut_ptr().cast(), 24);
    assert_eq!(ring.run(sqe::sendmsg(fd(&a), &outgoing, 0)), 1);
    let (mut control, mut vectors) = (Control([0; 24]), [iovec_mut(&mut buffer)]);
    let mut incoming = message(&mut vectors);
    (incoming.msg_control, incoming.msg_controllen) = (control.0.as_mut_ptr().cast(), 24);
    assert_eq!(ring.run(sqe::recvmsg(fd(&b), &mut incoming, 0)), 1);
    assert_eq!(incoming.msg_controllen, 24);
    let number = i32::from_ne_bytes([control.0[16], control.0[17], control.0[18], control.0[19]]);
    let mut passed = std::fs::File::from(owned(number, "the descriptor in the message"));
    passed.write_all(b"through").expect("write");
    drop((passed, writer));
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("read");
    assert_eq!(text, "through");
}

#[case]
fn sendmsg_bad_header_is_efault(cx: &Context) {
    let (a, _b) = pair();
    assert_eq!(cx.ring(4).run(prep(Opcode::Sendmsg, fd(&a), bad_address(), 1, 0)), -EFAULT);
}

#[case]
fn sendmsg_bad_vector_is_efault(cx: &Context) {
    let (a, _b) = pair();
    let mut vectors = [libc::iovec { iov_base: bad_address() as *mut libc::c_void, iov_len: 8 }];
    let message = message(&mut vectors);
    assert_eq!(cx.ring(4).run(sqe::sendmsg(fd(&a), &message, 0)), -EFAULT);
}

#[case]
fn recvmsg_scatters(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let (mut first, mut second) = ([0; 2], [0; 8]);
    let mut vectors = [iovec_mut(&mut first), iovec_mut(&mut second)];
    let mut message = message(&mut vectors);
    put(&b, b"abcde");
    assert_eq!(ring.run(sqe::recvmsg(fd(&a), &mut message, 0)), 5);
    assert_eq!((&first, &second[..3]), (b"ab", &b"cde"[..]));
}

#[case]
fn recvmsg_waits_for_data(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (pair(), cx.ring(4), [0; 8]);
    let mut vectors = [iovec_mut(&mut buffer)];
    let mut message = message(&mut vectors);
    ring.go(sqe::recvmsg(fd(&a), &mut message, 0));
    ring.expect_quiet();
    put(&b, b"abc");
    assert_eq!(ring.wait().res, 3);
    assert_eq!(&buffer[..3], b"abc");
}

#[case]
fn recvmsg_writes_the_name(cx: &Context) {
    let ((receiver, _), (sender, from)) = (udp(), udp());
    let (mut ring, mut buffer, mut name) = (cx.ring(4), [0; 8], loopback(0));
    sender.send_to(b"abc", receiver.local_addr().expect("the address")).expect("send");
    let mut vectors = [iovec_mut(&mut buffer)];
    let mut message = message(&mut vectors);
    (message.msg_name, message.msg_namelen) = ((&raw mut name).cast(), size_of::<libc::sockaddr_in>() as u32);
    assert_eq!(ring.run(sqe::recvmsg(fd(&receiver), &mut message, 0)), 3);
    assert_eq!((name.sin_port, message.msg_namelen), (from.sin_port, 16));
}

#[case]
fn recvmsg_writes_flags_and_lengths(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (unix_pair(libc::SOCK_DGRAM), cx.ring(4), [0; 2]);
    put(&b, b"abcdef");
    let mut vectors = [iovec_mut(&mut buffer)];
    let mut message = message(&mut vectors);
    message.msg_flags = 0x7777;
    assert_eq!(ring.run(sqe::recvmsg(fd(&a), &mut message, 0)), 2);
    assert_eq!((message.msg_flags, message.msg_namelen, message.msg_controllen), (libc::MSG_TRUNC, 0, 0));
}

#[case]
fn recvmsg_control_is_cut(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (pair(), cx.ring(4), [0; 8]);
    let (mut control, mut vectors) = (rights(fd(&a)), [iovec(b"x")]);
    let mut outgoing = message(&mut vectors);
    (outgoing.msg_control, outgoing.msg_controllen) = (control.0.as_mut_ptr().cast(), 24);
    assert_eq!(ring.run(sqe::sendmsg(fd(&a), &outgoing, 0)), 1);
    let mut vectors = [iovec_mut(&mut buffer)];
    let mut incoming = message(&mut vectors);
    assert_eq!(ring.run(sqe::recvmsg(fd(&b), &mut incoming, 0)), 1);
    assert_eq!(incoming.msg_flags, libc::MSG_CTRUNC);
}

#[case]
fn recvmsg_header_is_written_when_pending(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (unix_pair(libc::SOCK_DGRAM), cx.ring(4), [0; 2]);
    let mut vectors = [iovec_mut(&mut buffer)];
    let mut message = message(&mut vectors);
    ring.go(sqe::recvmsg(fd(&a), &mut message, 0));
    ring.expect_quiet();
    put(&b, b"abcdef");
    assert_eq!(ring.wait().res, 2);
    // SAFETY: the kernel wrote this field of the case's own structure.
    assert_eq!(unsafe { (&raw const message.msg_flags).read_volatile() }, libc::MSG_TRUNC);
}

#[case]
fn recvmsg_waitall_waits_for_all(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let (mut first, mut second) = ([0; 4], [0; 4]);
    let mut vectors = [iovec_mut(&mut first), iovec_mut(&mut second)];
    let mut message = message(&mut vectors);
    ring.go(sqe::recvmsg(fd(&a), &mut message, libc::MSG_WAITALL));
    put(&b, b"abcde");
    ring.expect_quiet();
    put(&b, b"fgh");
    assert_eq!(ring.wait().res, 8);
    assert_eq!((&first, &second), (b"abcd", b"efgh"));
}

#[case]
fn recvmsg_bad_header_is_efault(cx: &Context) {
    let (a, _b) = pair();
    assert_eq!(cx.ring(4).run(prep(Opcode::Recvmsg, fd(&a), bad_address(), 1, 0)), -EFAULT);
}

#[case(since = "5.6")]
fn datagrams_keep_their_borders(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(4));
    put(&b, b"abc");
    put(&b, b"de");
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [0; 8], 0)), 3);
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [0; 8], 0)), 2);
}

#[case(since = "5.6")]
fn two_recvs_of_datagrams(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(4));
    let (mut first, mut second) = ([0; 8], [0; 8]);
    ring.go(sqe::recv(fd(&a), &mut first, 0).data(1));
    ring.go(sqe::recv(fd(&a), &mut second, 0).data(2));
    put(&b, b"abc");
    put(&b, b"de");
    let mut lengths: Vec<i32> = ring.wait_all(2).iter().map(|cqe| cqe.res).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [2, 3]);
}

#[case(since = "5.6")]
fn fixed_file_send_and_recv(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (pair(), cx.ring(4), [0; 8]);
    ring.register_files(&[fd(&a), fd(&b)]);
    drop((a, b));
    assert_eq!(ring.run(sqe::send(0, b"abc", 0).with(IOSQE_FIXED_FILE)), 3);
    assert_eq!(ring.run(sqe::recv(1, &mut buffer, 0).with(IOSQE_FIXED_FILE)), 3);
}

#[case(since = "5.19")]
fn recv_sock_nonempty_flag(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(4));
    b.write_all(b"abcdef").expect("write");
    let mut flags = Vec::new();
    for length in [2, 4] {
        ring.go(sqe::recv(fd(&a), &mut [0; 8][..length], 0));
        let cqe = ring.wait();
        assert_eq!(cqe.res, length as i32);
        flags.push(cqe.flags);
    }
    assert_eq!(flags, [IORING_CQE_F_SOCK_NONEMPTY, 0]);
}

#[case(since = "5.6")]
fn seqpacket_pair(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_SEQPACKET), cx.ring(4));
    put(&b, b"abc");
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [0; 2], 0)), 2);
    drop(b);
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [0; 2], 0)), 0);
}

#[case(since = "5.19")]
fn big_transfer_over_tcp(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    let content: Vec<u8> = (0..4 << 20).map(|n| (n / 13) as u8).collect();
    let mut arrived = vec![0; content.len()];
    let (mut sent, mut got) = (0, 0);
    ring.go(sqe::send(fd(&a), &content, 0).data(1));
    ring.go(sqe::recv(fd(&b), &mut arrived, 0).data(2));
    while got < content.len() {
        let cqe = ring.wait();
        assert!(cqe.res > 0, "{cqe:?}");
        if cqe.user_data == 1 {
            sent += cqe.res as usize;
            if sent < content.len() {
                ring.go(sqe::send(fd(&a), &content[sent..], 0).data(1));
            }
        } else {
            got += cqe.res as usize;
            if got < content.len() {
                ring.go(sqe::recv(fd(&b), &mut arrived[got..], 0).data(2));
            }
        }
    }
    assert!(arrived == content);
}

#[case(since = "5.6")]
fn cancelled_waitall_tells_what_was_transferred(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (pair(), cx.ring(8), [0; 8]);
    put(&b, b"abc");
    ring.go(sqe::recv(fd(&a), &mut buffer, libc::MSG_WAITALL).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, 3), (2, 0)]);
    let content = vec![7; 8 << 20];
    ring.go(sqe::send(fd(&a), &content, libc::MSG_WAITALL).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    let results = ring.wait_sorted(2);
    assert!(results[0].1 > 0, "{results:?}");
    assert_eq!((drain(&b) as i32, results[1]), (results[0].1, (2, 0)));
}

#[case(undisturbed, since = "5.6")]
fn waitall_ended_by_its_link_timeout_tells_what_was_transferred(cx: &Context) {
    let ((a, b), mut ring, mut buffer, time) = (pair(), cx.ring(8), [0; 8], ms(20));
    put(&b, b"abc");
    let recv = sqe::recv(fd(&a), &mut buffer, libc::MSG_WAITALL).with(IOSQE_IO_LINK);
    let timeout = sqe::link_timeout(&time).with(IOSQE_IO_LINK);
    ring.go_all(&[recv.data(1), timeout.data(2), sqe::nop().data(3)]);
    assert_eq!(ring.wait_sorted(3), [(1, 3), (2, -ETIME), (3, -ECANCELED)]);
}

fn vector_of(socket: &OwnedFd, vectors: &[libc::iovec]) -> Sqe {
    prep(Opcode::Send, fd(socket), address(vectors), vectors.len() as u32, 0).ioprio(IORING_SEND_VECTORIZED as u16)
}

#[case(since = "6.17")]
fn send_of_a_vector(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let vectors = [iovec(b"one "), iovec(b""), iovec(b"two")];
    assert_eq!(ring.run(vector_of(&a, &vectors)), 7);
    assert_eq!(ring.run(vector_of(&a, &vectors).with(IOSQE_ASYNC)), 7);
    let mut room = [0; 16];
    assert_eq!(ring.run(sqe::recv(fd(&b), &mut room, 0)), 14);
    assert_eq!(&room[..14], b"one twoone two");
    assert_eq!(ring.run(vector_of(&a, &[])), 0);
    let mut vectors = [iovec(b"one")];
    let message = message(&mut vectors);
    let flagged = sqe::sendmsg(fd(&a), &message, 0).ioprio(IORING_SEND_VECTORIZED as u16);
    assert_eq!(ring.run(flagged), 3);
}

#[case]
fn send_of_a_bad_vector_is_refused(cx: &Context) {
    let ((a, _b), mut ring) = (pair(), cx.ring(8));
    let vectors = [iovec(b"x")];
    for count in [1025, i32::MAX as u32, u32::MAX] {
        assert_eq!(ring.run(Sqe { len: count, ..vector_of(&a, &vectors) }), -EINVAL);
    }
    assert_eq!(ring.run(Sqe { addr: bad_address(), ..vector_of(&a, &vectors) }), -EFAULT);
    assert_eq!(ring.run(vector_of(&a, &vectors).file_index(1 << 16)), -EINVAL);
}

#[case]
fn poll_first_without_waiting_on_no_descriptor_is_ebadf(cx: &Context) {
    let mut ring = cx.ring(4);
    let first = IORING_RECVSEND_POLL_FIRST as u16;
    assert_eq!(ring.run(sqe::send(-1, b"abc", libc::MSG_DONTWAIT).ioprio(first)), -EBADF);
    assert_eq!(ring.run(sqe::recv(9999, &mut [0; 3], libc::MSG_DONTWAIT).ioprio(first)), -EBADF);
}

/// SENDMSG and RECVMSG accept MSG_CMSG_COMPAT, which sendmsg(2) and recvmsg(2) refuse.
#[case]
fn message_without_control_data_may_have_cmsg_compat(cx: &Context) {
    const MSG_CMSG_COMPAT: i32 = i32::MIN;
    let ((a, b), mut ring, mut bytes) = (pair(), cx.ring(4), [0; 4]);
    let mut sent = [iovec(b"abc")];
    assert_eq!(ring.run(sqe::sendmsg(fd(&a), &message(&mut sent), MSG_CMSG_COMPAT)), 3);
    let mut received = [iovec_mut(&mut bytes)];
    assert_eq!(ring.run(sqe::recvmsg(fd(&b), &mut message(&mut received), MSG_CMSG_COMPAT)), 3);
    assert_eq!(&bytes[..3], b"abc");
}
