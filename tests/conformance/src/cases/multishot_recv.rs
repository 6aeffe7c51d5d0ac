//! Multishot RECV and RECVMSG: buffer after buffer from one request.

use super::prelude::*;
use crate::buffers::*;

topic!(since: "6.0", source: "io_uring_enter(2), io_uring/net.c");

#[case(since = "6.8")]
fn recv_answers_each_time(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv_multishot(fd(&b), 0));
    ring.expect_quiet();
    for (id, bytes) in [&b"one"[..], b"three", b"x"].iter().enumerate() {
        put(&a, bytes);
        assert_eq!(next_shot(&mut ring), (bytes.len() as i32, true, Some(id as u16)));
        assert_eq!(buffers.content(id as u16, bytes.len()), *bytes);
    }
    ring.expect_quiet();
    assert_eq!(buffers.head(&ring), 3);
}

#[case]
fn recv_takes_what_is_there(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 4);
    put(&a, b"0123456789");
    ring.go(recv_multishot(fd(&b), 0));
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
    assert_eq!(next_shot(&mut ring), (4, true, Some(1)));
    assert_eq!(next_shot(&mut ring), (2, true, Some(2)));
    assert_eq!(buffers.content(1, 4), b"4567");
    ring.expect_quiet();
}

#[case]
fn recv_ends_with_the_data(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv_multishot(fd(&b), 0));
    put(&a, b"last");
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
    drop(a);
    assert_eq!(next_shot(&mut ring), (0, false, None));
}

#[case]
fn recv_ends_without_buffers(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 2, 4);
    ring.go(recv_multishot(fd(&b), 0));
    put(&a, b"0123456789");
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
    assert_eq!(next_shot(&mut ring), (4, true, Some(1)));
    assert_eq!(next_shot(&mut ring), (-libc::ENOBUFS, false, None));
    assert_eq!(readable_bytes(&b), 2);
}

#[case]
fn recv_waits_with_no_buffer_left(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 2, 4);
    put(&a, b"01234567");
    ring.go(recv_multishot(fd(&b), 0));
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
    assert_eq!(next_shot(&mut ring), (4, true, Some(1)));
    ring.expect_quiet();
    put(&a, b"x");
    assert_eq!(next_shot(&mut ring), (-libc::ENOBUFS, false, None));
}

/// A socket of datagrams does not report its remaining data, so a multishot RECV selects the next buffer at once.
#[case]
fn recv_of_datagrams_ends_with_the_last_buffer(cx: &Context) {
    for kind in [libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        let ((a, b), mut ring) = (unix_pair(kind), cx.ring(8));
        let _buffers = BufferRing::filled(&ring, 1, 2, 4);
        put(&a, b"0123");
        put(&a, b"4");
        ring.go(recv_multishot(fd(&b), 0));
        assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
        assert_eq!(next_shot(&mut ring), (1, true, Some(1)));
        assert_eq!(next_shot(&mut ring), (-libc::ENOBUFS, false, None));
    }
}

/// The event of the end comes together with that of the data, and a request that polled first does not poll again.
#[case]
fn recv_async_of_data_and_the_end(cx: &Context) {
    let first = (IORING_RECV_MULTISHOT | IORING_RECVSEND_POLL_FIRST) as u16;
    for polls_first in [false, true] {
        let ((a, b), mut ring) = (pair(), cx.ring(8));
        let _buffers = BufferRing::filled(&ring, 1, 8, 64);
        put(&a, b"abc");
        drop(a);
        let sqe = recv_multishot(fd(&b), 0).data(1);
        ring.go(if polls_first { sqe.ioprio(first) } else { sqe.with(IOSQE_ASYNC) });
        assert_eq!(next_shot(&mut ring), (3, true, Some(0)));
        ring.expect_quiet();
        ring.go(sqe::shutdown(fd(&b), libc::SHUT_RD).data(2));
        assert_eq!(ring.wait_sorted(2), [(1, 0), (2, 0)]);
    }
}

#[case]
fn recv_goes_on_with_new_buffers(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let mut buffers = BufferRing::filled(&ring, 1, 2, 64);
    ring.go(recv_multishot(fd(&b), 0));
    for round in 0..20 {
        put(&a, &[round; 8]);
        let id = u16::from(round) % 2;
        assert_eq!(next_shot(&mut ring), (8, true, Some(id)));
        assert_eq!(buffers.content(id, 8), [round; 8]);
        buffers.give(id);
    }
}

#[case]
fn recv_of_length_takes_no_more(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    put(&a, b"01234");
    ring.go(recv_multishot(fd(&b), 2));
    assert_eq!(next_shot(&mut ring), (2, true, Some(0)));
    assert_eq!(next_shot(&mut ring), (2, true, Some(1)));
    assert_eq!(next_shot(&mut ring), (1, true, Some(2)));
}

#[case]
fn recv_limit_ends_it(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    ring.go(recv_multishot(fd(&b), 0).file_index(7));
    put(&a, b"01234567890123");
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
    assert_eq!(next_shot(&mut ring), (4, false, Some(1)));
    ring.expect_quiet();
    assert_eq!(readable_bytes(&b), 6);
}

#[case]
fn recv_without_select_is_einval(cx: &Context) {
    let ((_a, b), mut ring, mut room) = (pair(), cx.ring(8), [0; 8]);
    assert_eq!(ring.run(sqe::recv(fd(&b), &mut room, 0).ioprio(IORING_RECV_MULTISHOT as u16)), -EINVAL);
}

#[case]
fn recv_waitall_is_einval(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    assert_eq!(ring.run(recv_multishot(fd(&b), 0).op_flags(libc::MSG_WAITALL as u32)), -EINVAL);
}

#[case]
fn recv_poll_first_waits(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    let flags = IORING_RECV_MULTISHOT | IORING_RECVSEND_POLL_FIRST;
    put(&a, b"early");
    ring.go(recv_multishot(fd(&b), 0).ioprio(flags as u16));
    assert_eq!(next_shot(&mut ring), (5, true, Some(0)));
    put(&a, b"late");
    assert_eq!(next_shot(&mut ring), (4, true, Some(1)));
}

#[case]
fn recv_async(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv_multishot(fd(&b), 0).with(IOSQE_ASYNC));
    ring.expect_quiet();
    put(&a, b"one");
    assert_eq!(next_shot(&mut ring), (3, true, Some(0)));
    put(&a, b"more");
    assert_eq!(next_shot(&mut ring), (4, true, Some(1)));
}

#[case(since = "6.8")]
fn recv_is_cancelled(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv_multishot(fd(&b), 0).data(1));
    put(&a, b"one");
    assert_eq!(next_shot(&mut ring), (3, true, Some(0)));
    ring.go(sqe::cancel(1, 0).data(2));
    let mut cqes = ring.wait_all(2);
    cqes.sort_by_key(|cqe| cqe.user_data);
    assert_eq!(shot(&cqes[0]), (-ECANCELED, false, None));
    assert_eq!((cqes[1].res, buffers.head(&ring)), (0, 1));
}

#[case]
fn recv_cancelled_by_descriptor(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go_all(&[recv_multishot(fd(&b), 0).data(1), recv_multishot(fd(&b), 0).data(2)]);
    ring.go(sqe::cancel_fd(fd(&b), IORING_ASYNC_CANCEL_ALL).data(3));
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, -ECANCELED), (3, 2)]);
}

#[case]
fn recv_sees_a_reset(cx: &Context) {
    let ((client, server), mut ring) = (tcp_pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv_multishot(fd(&server), 0));
    ring.expect_quiet();
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>() as u32;
    // SAFETY: `linger` has the size passed.
    let answer = unsafe {
        libc::setsockopt(fd(&client), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size)
    };
    assert_eq!(answer, 0);
    drop(client);
    assert_eq!(next_shot(&mut ring), (-libc::ECONNRESET, false, None));
}

#[case]
fn recv_breaks_or_keeps_its_link(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go_all(&[recv_multishot(fd(&b), 0).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    put(&a, b"one");
    assert_eq!(next_shot(&mut ring), (3, true, Some(0)));
    ring.expect_quiet();
    drop(a);
    let results = ring.wait_ordered(2);
    assert_eq!(results[0], (1, 0));
    // The request asked for no particular length, so the case leaves the NOP's result open.
    assert_eq!(results[1].0, 2);
}

#[case]
fn recv_with_provided_buffers(cx: &Context) {
    let ((a, b), mut ring, mut room) = (pair(), cx.ring(8), [0; 16]);
    assert_eq!(ring.run(prep(Opcode::ProvideBuffers, 4, address_mut(&mut room), 4, 10).buffer(1)), 0);
    ring.go(recv_multishot(fd(&b), 0));
    put(&a, b"012345");
    assert_eq!(next_shot(&mut ring), (4, true, Some(10)));
    assert_eq!(next_shot(&mut ring), (2, true, Some(11)));
    put(&a, b"6789abcdef");
    assert_eq!(next_shot(&mut ring), (4, true, Some(12)));
    assert_eq!(next_shot(&mut ring), (4, true, Some(13)));
    assert_eq!(next_shot(&mut ring), (-libc::ENOBUFS, false, None));
    assert_eq!(std::hint::black_box(&room), b"012345\x00\x006789abcd");
}

#[case]
fn recv_of_datagrams(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    put(&a, b"12");
    put(&a, b"123456");
    ring.go(recv_multishot(fd(&b), 0));
    assert_eq!(next_shot(&mut ring), (2, true, Some(0)));
    assert_eq!(next_shot(&mut ring), (4, true, Some(1)));
    ring.expect_quiet();
}

#[case]
fn recv_much(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(256));
    let mut buffers = BufferRing::filled(&ring, 1, 256, 16);
    ring.go(recv_multishot(fd(&b), 0));
    let (rounds, mut count, mut expected) = (20, 0u32, 0u8);
    for round in 0..rounds {
        let chunk: Vec<u8> = (0..100 * 16).map(|at| ((round * 1600 + at) % 251) as u8).collect();
        put(&a, &chunk);
        let mut left = chunk.len() as i32;
        while left > 0 {
            let (result, more, id) = next_shot(&mut ring);
            assert!(more && result > 0, "result {result}");
            let id = id.expect("a buffer");
            for byte in buffers.content(id, result as usize) {
                assert_eq!(*byte, expected);
                expected = (expected + 1) % 251;
            }
            buffers.give(id);
            left -= result;
            count += 1;
        }
    }
    assert!(count >= 2000, "{count} results");
    ring.expect_quiet();
}

#[case(since = "6.12")]
fn recv_incremental(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let mut buffers = BufferRing::new(&ring, 1, 2, 8, IOU_PBUF_RING_INC);
    buffers.give(0);
    buffers.give(1);
    ring.go(recv_multishot(fd(&b), 0));
    let more = IORING_CQE_F_BUF_MORE;
    for (bytes, id, left) in [(&b"abc"[..], 0, more), (b"defgh", 0, 0), (b"ij", 1, more)] {
        put(&a, bytes);
        let cqe = ring.wait();
        assert_eq!(shot(&cqe), (bytes.len() as i32, true, Some(id)));
        assert_eq!(cqe.flags & more, left);
    }
    assert_eq!((buffers.content(0, 8), buffers.content(1, 2)), (&b"abcdefgh"[..], &b"ij"[..]));
}

#[case]
fn recv_of_a_closed_number_goes_on(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv_multishot(fd(&b), 0));
    ring.expect_quiet();
    drop(b);
    put(&a, b"one");
    assert_eq!(next_shot(&mut ring), (3, true, Some(0)));
    put(&a, b"more");
    assert_eq!(next_shot(&mut ring), (4, true, Some(1)));
}

#[case]
fn recv_of_a_registered_socket(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.register_files(&[fd(&b)]);
    drop(b);
    ring.go(recv_multishot(0, 0).with(IOSQE_FIXED_FILE));
    for id in 0..2 {
        put(&a, b"one");
        assert_eq!(next_shot(&mut ring), (3, true, Some(id)));
    }
}

/// `struct io_uring_recvmsg_out` at the start of a buffer: lengths of name, control data and payload, and flags.
fn out(buffers: &BufferRing, id: u16) -> [u32; 4] {
    let bytes = buffers.content(id, 16);
    std::array::from_fn(|word| u32::from_ne_bytes(bytes[word * 4..][..4].try_into().expect("four bytes")))
}

fn header(name: i32, control: usize) -> libc::msghdr {
    // SAFETY: msghdr is plain numbers and pointers, for which zeroes are valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_namelen, header.msg_controllen) = (name as u32, control as _);
    header
}

fn recvmsg(fd: i32, header: &mut libc::msghdr) -> Sqe {
    sqe::recvmsg(fd, header, 0).with(IOSQE_BUFFER_SELECT).ioprio(IORING_RECV_MULTISHOT as u16).buffer(1)
}

/// A UDP socket on loopback and its address.
fn udp() -> (std::net::UdpSocket, std::net::SocketAddr) {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
    let name = socket.local_addr().expect("the address");
    (socket, name)
}

#[case]
fn recvmsg_puts_a_header_first(cx: &Context) {
    let (((from, from_name), (to, to_name)), mut ring) = ((udp(), udp()), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 128);
    let mut header = header(20, 0);
    ring.go(recvmsg(fd(&to), &mut header));
    for (id, bytes) in [&b"datagram"[..], b"x"].iter().enumerate() {
        from.send_to(bytes, to_name).expect("send");
        let id = id as u16;
        assert_eq!(next_shot(&mut ring), (16 + 20 + bytes.len() as i32, true, Some(id)));
        assert_eq!(out(&buffers, id), [16, 0, bytes.len() as u32, 0]);
        assert_eq!(&buffers.content(id, 64)[18..20], from_name.port().to_be_bytes());
        assert_eq!(&buffers.content(id, 64)[36..36 + bytes.len()], *bytes);
    }
}

#[case]
fn recvmsg_cuts_what_does_not_fit(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 24);
    let mut header = header(0, 0);
    ring.go(recvmsg(fd(&b), &mut header));
    put(&a, b"0123456789");
    assert_eq!(next_shot(&mut ring), (24, true, Some(0)));
    assert_eq!(out(&buffers, 0), [0, 0, 8, libc::MSG_TRUNC as u32]);
    assert_eq!(&buffers.content(0, 24)[16..], b"01234567");
}

#[case]
fn recvmsg_of_control_data(cx: &Context) {
    let (((from, _), (to, to_name)), mut ring) = ((udp(), udp()), cx.ring(8));
    let on = 1i32;
    // SAFETY: an int is passed with its size.
    let answer = unsafe {
        libc::setsockopt(
            fd(&to),
            libc::IPPROTO_IP,
            libc::IP_RECVTTL,
            (&raw const on).cast(),
            size_of::<i32>() as u32,
        )
    };
    assert_eq!(answer, 0);
    let buffers = BufferRing::filled(&ring, 1, 8, 256);
    let mut header = header(0, 64);
    ring.go(recvmsg(fd(&to), &mut header));
    from.send_to(b"abc", to_name).expect("send");
    assert_eq!(next_shot(&mut ring), (16 + 64 + 3, true, Some(0)));
    let [name, control, payload, _] = out(&buffers, 0);
    assert_eq!((name, control, payload), (0, 24, 3));
    assert_eq!(&buffers.content(0, 100)[80..83], b"abc");
    let kind = i32::from_ne_bytes(buffers.content(0, 100)[28..32].try_into().expect("four bytes"));
    assert_eq!(kind, libc::IP_TTL);
}

#[case]
fn recvmsg_ends_with_an_empty_datagram(cx: &Context) {
    let (((from, _), (to, to_name)), mut ring) = ((udp(), udp()), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    let mut header = header(0, 0);
    ring.go(recvmsg(fd(&to), &mut header));
    from.send_to(b"", to_name).expect("send");
    assert_eq!(next_shot(&mut ring), (16, false, Some(0)));
    assert_eq!(out(&buffers, 0), [0, 0, 0, 0]);
}

#[case]
fn recvmsg_at_the_end_of_a_stream(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    let mut header = header(8, 8);
    ring.go(recvmsg(fd(&b), &mut header));
    drop(a);
    assert_eq!(next_shot(&mut ring), (32, false, Some(0)));
}

#[case(since = "6.8")]
fn recvmsg_into_a_buffer_too_small_is_efault(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 16);
    let mut header = header(1, 0);
    put(&a, b"0123456789");
    ring.go(recvmsg(fd(&b), &mut header));
    assert_eq!(next_shot(&mut ring), (-EFAULT, false, None));
    assert_eq!(buffers.head(&ring), 0);
}

#[case]
fn recvmsg_negative_name_length_is_eoverflow(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    let mut header = header(-1, 0);
    assert_eq!(ring.run(recvmsg(fd(&b), &mut header)), -EOVERFLOW);
}

#[case]
fn recvmsg_lengths_without_a_sum_are_eoverflow(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    for (name, control) in
        [(0, usize::MAX), (0, i32::MAX as usize - 15), (8, usize::MAX - 8), (i32::MAX, 0), (1 << 30, 1 << 30)]
    {
        let mut header = header(name, 0);
        header.msg_controllen = control as _;
        assert_eq!(ring.run(recvmsg(fd(&b), &mut header)), -EOVERFLOW, "{name} {control}");
    }
    // The largest lengths whose sum fits find no buffer of that size.
    put(&_a, b"x");
    let mut header = header(0, 0);
    header.msg_controllen = (i32::MAX as usize - 16) as _;
    assert_eq!(ring.run(recvmsg(fd(&b), &mut header)), -EFAULT);
}

#[case]
fn recvmsg_without_select_is_einval(cx: &Context) {
    let ((_a, b), mut ring, mut header) = (pair(), cx.ring(8), header(0, 0));
    assert_eq!(ring.run(sqe::recvmsg(fd(&b), &mut header, 0).ioprio(IORING_RECV_MULTISHOT as u16)), -EINVAL);
}
