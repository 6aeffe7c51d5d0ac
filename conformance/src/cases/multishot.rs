//! Requests that answer again and again: multishot ACCEPT, RECV, RECVMSG, and READ_MULTISHOT.

use super::prelude::*;
use crate::buffers::{buffer_of, BufferRing};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

cases! {
    any_flags: [
        accept_takes_each_connection,
        accept_takes_what_waits,
        accept_on_a_nonblocking_listener,
        accept_into_free_slots,
        accept_ends_when_the_slots_are_full,
        accept_into_a_given_slot_is_einval,
        accept_is_cancelled,
        recv_answers_each_time,
        recv_takes_what_is_there,
        recv_ends_with_the_data,
        recv_ends_without_buffers,
        recv_goes_on_with_new_buffers,
        recv_of_length_takes_no_more,
        recv_limit_ends_it,
        recv_without_select_is_einval,
        recv_waitall_is_einval,
        recv_poll_first_waits,
        recv_async,
        recv_is_cancelled,
        recv_cancelled_by_descriptor,
        recv_sees_a_reset,
        recv_breaks_or_keeps_its_link,
        recv_with_provided_buffers,
        recv_of_datagrams,
        recv_much,
        recv_incremental,
        recv_of_a_closed_number_goes_on,
        recv_of_a_registered_socket,
        recvmsg_puts_a_header_first,
        recvmsg_cuts_what_does_not_fit,
        recvmsg_of_control_data,
        recvmsg_ends_with_an_empty_datagram,
        recvmsg_at_the_end_of_a_stream,
        recvmsg_into_a_buffer_too_small_is_efault,
        recvmsg_negative_name_length_is_eoverflow,
        recvmsg_without_select_is_einval,
        read_answers_each_time,
        read_ends_with_the_data,
        read_ends_without_buffers,
        read_of_a_file_is_ebadfd,
        read_without_select_is_einval,
        read_with_address_or_length_is_einval,
        read_of_an_eventfd,
        read_is_cancelled,
        overflow_ends_recv,
        overflow_ends_accept,
        overflow_ends_read,
        overflow_ends_poll,
        overflow_ends_timeout,
    ],
    own_flags: [],
}

fn pair() -> (OwnedFd, OwnedFd) {
    unix_pair(libc::SOCK_STREAM)
}

fn put(to: &OwnedFd, bytes: &[u8]) {
    // SAFETY: the bytes live until the call returns.
    assert_eq!(unsafe { libc::send(fd(to), bytes.as_ptr().cast(), bytes.len(), 0) }, bytes.len() as isize);
}

/// A CQE's result, whether more follows, and its buffer. IORING_CQE_F_SOCK_NONEMPTY is a hint and not looked at.
fn seen(cqe: &Cqe) -> (i32, bool, Option<u16>) {
    (cqe.res, cqe.flags & IORING_CQE_F_MORE != 0, buffer_of(cqe))
}

fn next(ring: &mut Ring) -> (i32, bool, Option<u16>) {
    seen(&ring.wait())
}

fn accept(fd: i32) -> Sqe {
    sqe::accept(fd, 0).ioprio(IORING_ACCEPT_MULTISHOT as u16)
}

fn recv(fd: i32, len: u32) -> Sqe {
    prep(Opcode::Recv, fd, 0, len, 0)
        .with(IOSQE_BUFFER_SELECT)
        .ioprio(IORING_RECV_MULTISHOT as u16)
        .buffer(1)
}

fn read(fd: i32) -> Sqe {
    prep(Opcode::ReadMultishot, fd, 0, 0, 0).with(IOSQE_BUFFER_SELECT).buffer(1)
}

fn connect(to: &TcpListener) -> TcpStream {
    TcpStream::connect(to.local_addr().expect("the address")).expect("connect")
}

fn accept_takes_each_connection(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    ring.go(accept(fd(&listener)));
    ring.expect_quiet();
    for _ in 0..3 {
        let mut client = connect(&listener);
        let (number, more, _) = next(&mut ring);
        assert!(more);
        let mut accepted = std::fs::File::from(owned(number, "accepted"));
        client.write_all(b"x").expect("write");
        assert_eq!(accepted.read(&mut [0; 4]).expect("read"), 1);
    }
    ring.expect_quiet();
}

fn accept_takes_what_waits(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    let _clients = [connect(&listener), connect(&listener), connect(&listener)];
    ring.go(accept(fd(&listener)));
    for _ in 0..3 {
        let (number, more, _) = next(&mut ring);
        drop(owned(number, "accepted"));
        assert!(more);
    }
    ring.expect_quiet();
}

fn accept_on_a_nonblocking_listener(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    listener.set_nonblocking(true).expect("nonblocking");
    let _early = [connect(&listener), connect(&listener)];
    ring.go(accept(fd(&listener)));
    let _late = connect(&listener);
    for _ in 0..3 {
        let (number, more, _) = next(&mut ring);
        drop(owned(number, "accepted"));
        assert!(more);
    }
    ring.expect_quiet();
}

fn into_slots(fd: i32) -> Sqe {
    accept(fd).file_index(IORING_FILE_INDEX_ALLOC as u32)
}

fn accept_into_free_slots(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    ring.register_files(&[-1, -1, -1]);
    ring.go(into_slots(fd(&listener)).data(1));
    for slot in 0..2 {
        let mut client = connect(&listener);
        assert_eq!(next(&mut ring), (slot, true, None));
        client.write_all(b"abc").expect("write");
        let mut room = [0; 8];
        ring.go(sqe::recv(slot, &mut room, 0).with(IOSQE_FIXED_FILE).data(2));
        assert_eq!(ring.wait().res, 3);
    }
}

fn accept_ends_when_the_slots_are_full(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    ring.register_files(&[-1]);
    ring.go(into_slots(fd(&listener)));
    let _clients = [connect(&listener), connect(&listener)];
    assert_eq!(next(&mut ring), (0, true, None));
    assert_eq!(next(&mut ring), (-libc::ENFILE, false, None));
}

fn accept_into_a_given_slot_is_einval(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    ring.register_files(&[-1]);
    assert_eq!(ring.run(accept(fd(&listener)).file_index(1)), -EINVAL);
}

fn accept_is_cancelled(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    ring.go(accept(fd(&listener)).data(1));
    let _client = connect(&listener);
    let (number, more, _) = next(&mut ring);
    drop(owned(number, "accepted"));
    assert!(more);
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

fn recv_answers_each_time(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv(fd(&b), 0));
    ring.expect_quiet();
    for (id, bytes) in [&b"one"[..], b"three", b"x"].iter().enumerate() {
        put(&a, bytes);
        assert_eq!(next(&mut ring), (bytes.len() as i32, true, Some(id as u16)));
        assert_eq!(buffers.content(id as u16, bytes.len()), *bytes);
    }
    ring.expect_quiet();
    assert_eq!(buffers.head(&ring), 3);
}

fn recv_takes_what_is_there(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 4);
    put(&a, b"0123456789");
    ring.go(recv(fd(&b), 0));
    assert_eq!(next(&mut ring), (4, true, Some(0)));
    assert_eq!(next(&mut ring), (4, true, Some(1)));
    assert_eq!(next(&mut ring), (2, true, Some(2)));
    assert_eq!(buffers.content(1, 4), b"4567");
    ring.expect_quiet();
}

fn recv_ends_with_the_data(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv(fd(&b), 0));
    put(&a, b"last");
    assert_eq!(next(&mut ring), (4, true, Some(0)));
    drop(a);
    assert_eq!(next(&mut ring), (0, false, None));
}

fn recv_ends_without_buffers(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 2, 4);
    ring.go(recv(fd(&b), 0));
    put(&a, b"0123456789");
    assert_eq!(next(&mut ring), (4, true, Some(0)));
    assert_eq!(next(&mut ring), (4, true, Some(1)));
    assert_eq!(next(&mut ring), (-libc::ENOBUFS, false, None));
    assert_eq!(readable_bytes(&b), 2);
}

fn recv_goes_on_with_new_buffers(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let mut buffers = BufferRing::filled(&ring, 1, 2, 64);
    ring.go(recv(fd(&b), 0));
    for round in 0..20 {
        put(&a, &[round; 8]);
        let id = u16::from(round) % 2;
        assert_eq!(next(&mut ring), (8, true, Some(id)));
        assert_eq!(buffers.content(id, 8), [round; 8]);
        buffers.give(id);
    }
}

fn recv_of_length_takes_no_more(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    put(&a, b"01234");
    ring.go(recv(fd(&b), 2));
    assert_eq!(next(&mut ring), (2, true, Some(0)));
    assert_eq!(next(&mut ring), (2, true, Some(1)));
    assert_eq!(next(&mut ring), (1, true, Some(2)));
}

fn recv_limit_ends_it(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    ring.go(recv(fd(&b), 0).file_index(7));
    put(&a, b"01234567890123");
    assert_eq!(next(&mut ring), (4, true, Some(0)));
    assert_eq!(next(&mut ring), (4, false, Some(1)));
    ring.expect_quiet();
    assert_eq!(readable_bytes(&b), 6);
}

fn recv_without_select_is_einval(cx: &Context) {
    let ((_a, b), mut ring, mut room) = (pair(), cx.ring(8), [0; 8]);
    assert_eq!(ring.run(sqe::recv(fd(&b), &mut room, 0).ioprio(IORING_RECV_MULTISHOT as u16)), -EINVAL);
}

fn recv_waitall_is_einval(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    assert_eq!(ring.run(recv(fd(&b), 0).op_flags(libc::MSG_WAITALL as u32)), -EINVAL);
}

fn recv_poll_first_waits(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    let flags = IORING_RECV_MULTISHOT | IORING_RECVSEND_POLL_FIRST;
    put(&a, b"early");
    ring.go(recv(fd(&b), 0).ioprio(flags as u16));
    assert_eq!(next(&mut ring), (5, true, Some(0)));
    put(&a, b"late");
    assert_eq!(next(&mut ring), (4, true, Some(1)));
}

fn recv_async(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv(fd(&b), 0).with(IOSQE_ASYNC));
    ring.expect_quiet();
    put(&a, b"one");
    assert_eq!(next(&mut ring), (3, true, Some(0)));
    put(&a, b"more");
    assert_eq!(next(&mut ring), (4, true, Some(1)));
}

fn recv_is_cancelled(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv(fd(&b), 0).data(1));
    put(&a, b"one");
    assert_eq!(next(&mut ring), (3, true, Some(0)));
    ring.go(sqe::cancel(1, 0).data(2));
    let mut cqes = ring.wait_all(2);
    cqes.sort_by_key(|cqe| cqe.user_data);
    assert_eq!(seen(&cqes[0]), (-ECANCELED, false, None));
    assert_eq!((cqes[1].res, buffers.head(&ring)), (0, 1));
}

fn recv_cancelled_by_descriptor(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go_all(&[recv(fd(&b), 0).data(1), recv(fd(&b), 0).data(2)]);
    ring.go(sqe::cancel_fd(fd(&b), IORING_ASYNC_CANCEL_ALL).data(3));
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, -ECANCELED), (3, 2)]);
}

fn recv_sees_a_reset(cx: &Context) {
    let ((client, server), mut ring) = (tcp_pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv(fd(&server), 0));
    ring.expect_quiet();
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>() as u32;
    // SAFETY: `linger` has the size passed.
    let answer = unsafe {
        libc::setsockopt(fd(&client), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size)
    };
    assert_eq!(answer, 0);
    drop(client);
    assert_eq!(next(&mut ring), (-libc::ECONNRESET, false, None));
}

fn recv_breaks_or_keeps_its_link(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go_all(&[recv(fd(&b), 0).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    put(&a, b"one");
    assert_eq!(next(&mut ring), (3, true, Some(0)));
    ring.expect_quiet();
    drop(a);
    let results = ring.wait_ordered(2);
    assert_eq!(results[0], (1, 0));
    // The end of the data is not the length that was asked for, which is none.
    assert_eq!(results[1].0, 2);
}

fn recv_with_provided_buffers(cx: &Context) {
    let ((a, b), mut ring, mut room) = (pair(), cx.ring(8), [0; 16]);
    assert_eq!(ring.run(prep(Opcode::ProvideBuffers, 4, address_mut(&mut room), 4, 10).buffer(1)), 0);
    ring.go(recv(fd(&b), 0));
    put(&a, b"012345");
    assert_eq!(next(&mut ring), (4, true, Some(10)));
    assert_eq!(next(&mut ring), (2, true, Some(11)));
    put(&a, b"6789abcdef");
    assert_eq!(next(&mut ring), (4, true, Some(12)));
    assert_eq!(next(&mut ring), (4, true, Some(13)));
    assert_eq!(next(&mut ring), (-libc::ENOBUFS, false, None));
    assert_eq!(std::hint::black_box(&room), b"012345\x00\x006789abcd");
}

fn recv_of_datagrams(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    put(&a, b"12");
    put(&a, b"123456");
    ring.go(recv(fd(&b), 0));
    assert_eq!(next(&mut ring), (2, true, Some(0)));
    assert_eq!(next(&mut ring), (4, true, Some(1)));
    ring.expect_quiet();
}

fn recv_much(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(256));
    let mut buffers = BufferRing::filled(&ring, 1, 256, 16);
    ring.go(recv(fd(&b), 0));
    let (rounds, mut count, mut expected) = (20, 0u32, 0u8);
    for round in 0..rounds {
        let chunk: Vec<u8> = (0..100 * 16).map(|at| ((round * 1600 + at) % 251) as u8).collect();
        put(&a, &chunk);
        let mut left = chunk.len() as i32;
        while left > 0 {
            let (result, more, id) = next(&mut ring);
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

fn recv_incremental(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let mut buffers = BufferRing::new(&ring, 1, 2, 8, IOU_PBUF_RING_INC);
    buffers.give(0);
    buffers.give(1);
    ring.go(recv(fd(&b), 0));
    let more = IORING_CQE_F_BUF_MORE;
    for (bytes, id, left) in [(&b"abc"[..], 0, more), (b"defgh", 0, 0), (b"ij", 1, more)] {
        put(&a, bytes);
        let cqe = ring.wait();
        assert_eq!(seen(&cqe), (bytes.len() as i32, true, Some(id)));
        assert_eq!(cqe.flags & more, left);
    }
    assert_eq!((buffers.content(0, 8), buffers.content(1, 2)), (&b"abcdefgh"[..], &b"ij"[..]));
}

fn recv_of_a_closed_number_goes_on(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv(fd(&b), 0));
    ring.expect_quiet();
    drop(b);
    put(&a, b"one");
    assert_eq!(next(&mut ring), (3, true, Some(0)));
    put(&a, b"more");
    assert_eq!(next(&mut ring), (4, true, Some(1)));
}

fn recv_of_a_registered_socket(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.register_files(&[fd(&b)]);
    drop(b);
    ring.go(recv(0, 0).with(IOSQE_FIXED_FILE));
    for id in 0..2 {
        put(&a, b"one");
        assert_eq!(next(&mut ring), (3, true, Some(id)));
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
    (header.msg_namelen, header.msg_controllen) = (name as u32, control);
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

fn recvmsg_puts_a_header_first(cx: &Context) {
    let (((from, from_name), (to, to_name)), mut ring) = ((udp(), udp()), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 128);
    let mut header = header(20, 0);
    ring.go(recvmsg(fd(&to), &mut header));
    for (id, bytes) in [&b"datagram"[..], b"x"].iter().enumerate() {
        from.send_to(bytes, to_name).expect("send");
        let id = id as u16;
        assert_eq!(next(&mut ring), (16 + 20 + bytes.len() as i32, true, Some(id)));
        assert_eq!(out(&buffers, id), [16, 0, bytes.len() as u32, 0]);
        assert_eq!(&buffers.content(id, 64)[18..20], from_name.port().to_be_bytes());
        assert_eq!(&buffers.content(id, 64)[36..36 + bytes.len()], *bytes);
    }
}

fn recvmsg_cuts_what_does_not_fit(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 24);
    let mut header = header(0, 0);
    ring.go(recvmsg(fd(&b), &mut header));
    put(&a, b"0123456789");
    assert_eq!(next(&mut ring), (24, true, Some(0)));
    assert_eq!(out(&buffers, 0), [0, 0, 8, libc::MSG_TRUNC as u32]);
    assert_eq!(&buffers.content(0, 24)[16..], b"01234567");
}

fn recvmsg_of_control_data(cx: &Context) {
    let (((from, _), (to, to_name)), mut ring) = ((udp(), udp()), cx.ring(8));
    let on = 1i32;
    // SAFETY: an int is passed with its size.
    let answer = unsafe {
        libc::setsockopt(fd(&to), libc::IPPROTO_IP, libc::IP_RECVTTL, (&raw const on).cast(), size_of::<i32>() as u32)
    };
    assert_eq!(answer, 0);
    let buffers = BufferRing::filled(&ring, 1, 8, 256);
    let mut header = header(0, 64);
    ring.go(recvmsg(fd(&to), &mut header));
    from.send_to(b"abc", to_name).expect("send");
    assert_eq!(next(&mut ring), (16 + 64 + 3, true, Some(0)));
    let [name, control, payload, _] = out(&buffers, 0);
    assert_eq!((name, control, payload), (0, 24, 3));
    assert_eq!(&buffers.content(0, 100)[80..83], b"abc");
    let kind = i32::from_ne_bytes(buffers.content(0, 100)[28..32].try_into().expect("four bytes"));
    assert_eq!(kind, libc::IP_TTL);
}

fn recvmsg_ends_with_an_empty_datagram(cx: &Context) {
    let (((from, _), (to, to_name)), mut ring) = ((udp(), udp()), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    let mut header = header(0, 0);
    ring.go(recvmsg(fd(&to), &mut header));
    from.send_to(b"", to_name).expect("send");
    assert_eq!(next(&mut ring), (16, false, Some(0)));
    assert_eq!(out(&buffers, 0), [0, 0, 0, 0]);
}

fn recvmsg_at_the_end_of_a_stream(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    let mut header = header(8, 8);
    ring.go(recvmsg(fd(&b), &mut header));
    drop(a);
    assert_eq!(next(&mut ring), (32, false, Some(0)));
}

fn recvmsg_into_a_buffer_too_small_is_efault(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 16);
    let mut header = header(1, 0);
    put(&a, b"0123456789");
    ring.go(recvmsg(fd(&b), &mut header));
    assert_eq!(next(&mut ring), (-EFAULT, false, None));
    assert_eq!(buffers.head(&ring), 0);
}

fn recvmsg_negative_name_length_is_eoverflow(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    let mut header = header(-1, 0);
    assert_eq!(ring.run(recvmsg(fd(&b), &mut header)), -EOVERFLOW);
}

fn recvmsg_without_select_is_einval(cx: &Context) {
    let ((_a, b), mut ring, mut header) = (pair(), cx.ring(8), header(0, 0));
    assert_eq!(ring.run(sqe::recvmsg(fd(&b), &mut header, 0).ioprio(IORING_RECV_MULTISHOT as u16)), -EINVAL);
}

fn read_answers_each_time(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 4);
    ring.go(read(fd(&reader)));
    ring.expect_quiet();
    writer.write_all(b"012345").expect("write");
    assert_eq!(next(&mut ring), (4, true, Some(0)));
    assert_eq!(next(&mut ring), (2, true, Some(1)));
    writer.write_all(b"678").expect("write");
    assert_eq!(next(&mut ring), (3, true, Some(2)));
    assert_eq!(buffers.content(2, 3), b"678");
    ring.expect_quiet();
}

fn read_ends_with_the_data(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    writer.write_all(b"last").expect("write");
    ring.go(read(fd(&reader)));
    assert_eq!(next(&mut ring), (4, true, Some(0)));
    drop(writer);
    assert_eq!(next(&mut ring), (0, false, None));
}

fn read_ends_without_buffers(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 1, 4);
    writer.write_all(b"012345").expect("write");
    ring.go(read(fd(&reader)));
    assert_eq!(next(&mut ring), (4, true, Some(0)));
    assert_eq!(next(&mut ring), (-libc::ENOBUFS, false, None));
}

fn read_of_a_file_is_ebadfd(cx: &Context) {
    let (file, mut ring) = (file("f", b"0123456789"), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    assert_eq!(ring.run(read(fd(&file))), -EBADFD);
    let zero = std::fs::File::open("/dev/zero").expect("open");
    assert_eq!(ring.run(read(fd(&zero))), -EBADFD);
}

fn read_without_select_is_einval(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.ring(8).run(prep(Opcode::ReadMultishot, fd(&reader), 0, 0, 0)), -EINVAL);
}

fn read_with_address_or_length_is_einval(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    assert_eq!(ring.run(Sqe { len: 1, ..read(fd(&reader)) }), -EINVAL);
    assert_eq!(ring.run(Sqe { addr: 1, ..read(fd(&reader)) }), -EINVAL);
}

fn read_of_an_eventfd(cx: &Context) {
    let (mut event, mut ring) = (eventfd(0, 0), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 8);
    ring.go(read(fd(&event)));
    for (id, value) in [3u64, 5].into_iter().enumerate() {
        event.write_all(&value.to_ne_bytes()).expect("write");
        assert_eq!(next(&mut ring), (8, true, Some(id as u16)));
        assert_eq!(buffers.content(id as u16, 8), value.to_ne_bytes());
    }
}

fn read_is_cancelled(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    ring.go(read(fd(&reader)).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

/// A ring whose CQ has one place left.
fn nearly_full(cx: &Context) -> Ring {
    let mut ring = cx.ring(2);
    for _ in 0..ring.params.cq_entries - 1 {
        ring.go(sqe::nop().data(9));
    }
    assert_eq!(ring.cq_ready(), ring.params.cq_entries - 1);
    ring
}

/// What comes behind the NOPs of [`nearly_full`], after `limit` of quiet.
fn behind_the_nops(ring: &mut Ring) -> Vec<Cqe> {
    // The kernel looks at its task work in an enter.
    ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0);
    std::thread::sleep(Duration::from_millis(30));
    ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0);
    let mut cqes = Vec::new();
    while let Some(cqe) = ring.wait_for(Duration::from_millis(50)) {
        cqes.push(cqe);
    }
    cqes.retain(|cqe| cqe.user_data != 9);
    cqes
}

fn overflow_ends_recv(cx: &Context) {
    let ((a, b), mut ring) = (pair(), nearly_full(cx));
    let buffers = BufferRing::filled(&ring, 1, 8, 4);
    put(&a, b"0123456789abcdef");
    ring.go(recv(fd(&b), 0));
    let cqes = behind_the_nops(&mut ring);
    let seen: Vec<_> = cqes.iter().map(seen).collect();
    assert_eq!(seen, [(4, true, Some(0)), (4, false, Some(1))]);
    assert_eq!((buffers.head(&ring), readable_bytes(&b)), (2, 8));
}

fn overflow_ends_accept(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), nearly_full(cx));
    listener.set_nonblocking(true).expect("nonblocking");
    let _clients = [connect(&listener), connect(&listener), connect(&listener)];
    ring.go(accept(fd(&listener)));
    let cqes = behind_the_nops(&mut ring);
    let more: Vec<_> = cqes.iter().map(|cqe| seen(cqe).1).collect();
    cqes.iter().for_each(|cqe| drop(owned(cqe.res, "accepted")));
    assert_eq!(more, [true, false]);
}

fn overflow_ends_read(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), nearly_full(cx));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    writer.write_all(b"0123456789abcdef").expect("write");
    ring.go(read(fd(&reader)));
    let cqes = behind_the_nops(&mut ring);
    let seen: Vec<_> = cqes.iter().map(seen).collect();
    assert_eq!(seen, [(4, true, Some(0)), (4, false, Some(1))]);
    assert_eq!(readable_bytes(&reader), 8);
}

fn overflow_ends_poll(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(2));
    ring.go(sqe::poll_add(fd(&reader), libc::POLLIN, IORING_POLL_ADD_MULTI).data(1));
    for _ in 0..ring.params.cq_entries {
        ring.go(sqe::nop().data(9));
    }
    writer.write_all(b"x").expect("write");
    let cqes = behind_the_nops(&mut ring);
    let seen: Vec<_> = cqes.iter().map(seen).collect();
    assert_eq!(seen, [(i32::from(libc::POLLIN), false, None)]);
}

fn overflow_ends_timeout(cx: &Context) {
    let (mut ring, span) = (cx.ring(2), ms(10));
    for _ in 0..ring.params.cq_entries {
        ring.go(sqe::nop().data(9));
    }
    ring.go(sqe::timeout(&span, 0, IORING_TIMEOUT_MULTISHOT).data(1));
    let cqes = behind_the_nops(&mut ring);
    let seen: Vec<_> = cqes.iter().map(seen).collect();
    assert_eq!(seen, [(-ETIME, false, None)]);
}
