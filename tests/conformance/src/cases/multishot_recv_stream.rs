//! A multishot RECV on a TCP socket that has more data than a buffer takes. Each buffer gets the data of one receive,
//! and a CQE.

use super::prelude::*;
use crate::buffers::*;
use std::net::TcpStream;
use std::time::Duration;

topic!(since: "6.0", source: "io_recv_finish in io_uring/net.c");

/// Waits until data sent on loopback has surely arrived. No call reports that, since a receive may take it at once.
fn let_arrive() {
    std::thread::sleep(Duration::from_millis(5));
}

fn send(to: &TcpStream, bytes: &[u8]) {
    let mut to = to;
    to.write_all(bytes).expect("send");
    let_arrive();
}

/// A connected pair, with a multishot receive on the second.
fn started(
    cx: &Context,
    entries: u32,
    count: u16,
    bytes: usize,
    len: u32,
) -> (TcpStream, TcpStream, Ring, BufferRing) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(entries));
    let buffers = BufferRing::filled(&ring, 1, count, bytes);
    ring.go(recv_multishot(fd(&b), len));
    ring.expect_quiet();
    (a, b, ring, buffers)
}

/// Returns for each of `count` CQEs its result, its buffer if more follows, and its IORING_CQE_F_SOCK_NONEMPTY.
fn shots(ring: &mut Ring, count: usize) -> Vec<(i32, Option<u16>, bool)> {
    let more = |cqe: &Cqe| cqe.flags & IORING_CQE_F_MORE != 0;
    let shot = |cqe: Cqe| {
        assert_eq!(buffer_of(&cqe).is_some(), more(&cqe), "{cqe:?}");
        (cqe.res, buffer_of(&cqe), cqe.flags & IORING_CQE_F_SOCK_NONEMPTY != 0)
    };
    ring.wait_all(count).into_iter().map(shot).collect()
}

/// The bytes 0, 1, 2 ...
fn counted(count: usize) -> Vec<u8> {
    (0..count).map(|byte| byte as u8).collect()
}

#[case(since = "6.8")]
fn fills_buffer_after_buffer(cx: &Context) {
    let (a, _b, mut ring, buffers) = started(cx, 8, 16, 4, 0);
    send(&a, &counted(22));
    let full = |id| (4, Some(id), true);
    assert_eq!(shots(&mut ring, 6), [full(0), full(1), full(2), full(3), full(4), (2, Some(5), false)]);
    for id in 0..5 {
        assert_eq!(buffers.content(id, 4), &counted(22)[usize::from(id) * 4..][..4]);
    }
    assert_eq!(buffers.content(5, 4), [20, 21, 0, 0]);
    ring.expect_quiet();
    send(&a, b"more");
    assert_eq!(shots(&mut ring, 1), [(4, Some(6), false)]);
    assert_eq!(buffers.head(&ring), 7);
}

#[case]
fn ends_with_a_full_buffer(cx: &Context) {
    let (a, _b, mut ring, _buffers) = started(cx, 8, 16, 4, 0);
    send(&a, &counted(12));
    assert_eq!(shots(&mut ring, 3), [(4, Some(0), true), (4, Some(1), true), (4, Some(2), false)]);
    ring.expect_quiet();
    send(&a, &counted(8));
    assert_eq!(shots(&mut ring, 2), [(4, Some(3), true), (4, Some(4), false)]);
}

#[case]
fn more_than_there_are_buffers(cx: &Context) {
    let (a, b, mut ring, mut buffers) = started(cx, 8, 4, 4, 0);
    send(&a, &counted(30));
    let full = |id| (4, Some(id), true);
    assert_eq!(shots(&mut ring, 5), [full(0), full(1), full(2), full(3), (-libc::ENOBUFS, None, false)]);
    (0..4).for_each(|id| buffers.give(3 - id));
    ring.go(recv_multishot(fd(&b), 0));
    assert_eq!(shots(&mut ring, 4), [full(3), full(2), full(1), (2, Some(0), false)]);
    assert_eq!(buffers.content(1, 4), &counted(30)[24..28]);
    ring.expect_quiet();
}

#[case]
fn more_than_there_are_cqes(cx: &Context) {
    let (a, b, mut ring, buffers) = started(cx, 2, 64, 1, 0);
    let places = ring.params.cq_entries as usize;
    send(&a, &counted(40));
    let shots: Vec<_> = ring.wait_all(places + 1).iter().map(shot).collect();
    for (id, shot) in shots[..places].iter().enumerate() {
        assert_eq!(*shot, (1, true, Some(id as u16)));
    }
    assert_eq!(shots[places], (1, false, Some(places as u16)));
    assert_eq!(buffers.content(0, places), counted(places));
    assert_eq!(readable_bytes(&b), 40 - places as i32 - 1);
}

#[case]
fn bytes_to_receive_at_a_time(cx: &Context) {
    let (a, _b, mut ring, buffers) = started(cx, 8, 16, 4, 3);
    send(&a, &counted(11));
    let full = |id| (3, Some(id), true);
    assert_eq!(shots(&mut ring, 4), [full(0), full(1), full(2), (2, Some(3), false)]);
    assert_eq!(buffers.content(1, 4), [3, 4, 5, 0]);
    assert_eq!(buffers.content(3, 4), [9, 10, 0, 0]);
}

#[case(since = "6.8")]
fn buffers_of_different_lengths(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    let mut buffers = BufferRing::new(&ring, 1, 8, 8, 0);
    for (id, len) in [1, 8, 2, 8, 3].into_iter().enumerate() {
        buffers.give_at(id as u16, buffers.start(id as u16), len);
    }
    send(&a, &counted(16));
    ring.go(recv_multishot(fd(&b), 0));
    let shots = shots(&mut ring, 4);
    assert_eq!(shots, [(1, Some(0), true), (8, Some(1), true), (2, Some(2), true), (5, Some(3), false)]);
    assert_eq!(buffers.content(3, 5), [11, 12, 13, 14, 15]);
    assert_eq!(buffers.head(&ring), 4);
}

#[case(since = "6.8")]
fn a_buffer_of_no_length(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    let mut buffers = BufferRing::new(&ring, 1, 8, 4, 0);
    for (id, len) in [4, 4, 0, 4].into_iter().enumerate() {
        buffers.give_at(id as u16, buffers.start(id as u16), len);
    }
    send(&a, &counted(16));
    ring.go(recv_multishot(fd(&b), 0));
    let shots: Vec<_> = ring.wait_all(3).iter().map(shot).collect();
    assert_eq!(shots, [(4, true, Some(0)), (4, true, Some(1)), (0, false, None)]);
    assert_eq!(buffers.head(&ring), 2);
    assert_eq!(readable_bytes(&b), 8);
}

#[case(since = "6.8")]
fn a_bad_buffer(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    let mut buffers = BufferRing::new(&ring, 1, 8, 4, 0);
    (0..2).for_each(|id| buffers.give(id));
    buffers.give_at(2, 8, 4);
    buffers.give(3);
    send(&a, &counted(16));
    ring.go(recv_multishot(fd(&b), 0));
    let shots = shots(&mut ring, 3);
    assert_eq!(shots, [(4, Some(0), true), (4, Some(1), true), (-libc::EFAULT, None, false)]);
    assert_eq!(buffers.content(1, 4), [4, 5, 6, 7]);
    assert_eq!((buffers.head(&ring), readable_bytes(&b)), (2, 8));
}

#[case(since = "6.8")]
fn a_buffer_that_is_partly_bad(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    let mut buffers = BufferRing::new(&ring, 1, 8, 4, 0);
    let pages = pages(2);
    // SAFETY: the second page is this case's own, and no Rust value is in it.
    assert_eq!(unsafe { libc::mprotect(pages[4096..].as_mut_ptr().cast(), 4096, libc::PROT_NONE) }, 0);
    (0..2).for_each(|id| buffers.give(id));
    buffers.give_at(2, pages.as_ptr() as u64 + 4094, 4);
    send(&a, &counted(16));
    ring.go(recv_multishot(fd(&b), 0));
    let shots = shots(&mut ring, 3);
    assert_eq!(shots, [(4, Some(0), true), (4, Some(1), true), (-libc::EFAULT, None, false)]);
    assert_eq!((buffers.head(&ring), readable_bytes(&b)), (2, 8));
}

#[case]
fn provided_buffers(cx: &Context) {
    let ((a, b), mut ring, mut memory) = (tcp_pair(), cx.ring(8), [0u8; 16]);
    assert_eq!(ring.run(prep(Opcode::ProvideBuffers, 4, address_mut(&mut memory), 4, 10).buffer(1)), 0);
    send(&a, &counted(14));
    ring.go(recv_multishot(fd(&b), 0));
    let full = |id| (4, Some(id), true);
    assert_eq!(shots(&mut ring, 4), [full(10), full(11), full(12), (2, Some(13), false)]);
    assert_eq!(memory[..14], counted(14));
}

#[case(since = "6.12")]
fn incremental_buffers(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    let mut buffers = BufferRing::new(&ring, 1, 8, 8, IOU_PBUF_RING_INC);
    (0..3).for_each(|id| buffers.give(id));
    ring.go(recv_multishot(fd(&b), 3));
    send(&a, &counted(14));
    let shots: Vec<_> = ring.wait_all(5).iter().map(shot).collect();
    let shot = |count, id| (count, true, Some(id));
    assert_eq!(shots, [shot(3, 0), shot(3, 0), shot(2, 0), shot(3, 1), shot(3, 1)]);
}

#[case]
fn limit_on_all_of_it(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 16, 4);
    send(&a, &counted(20));
    ring.go(recv_multishot(fd(&b), 0).file_index(10));
    let shots: Vec<_> = ring.wait_all(3).iter().map(shot).collect();
    assert_eq!(shots, [(4, true, Some(0)), (4, true, Some(1)), (4, false, Some(2))]);
    assert_eq!(readable_bytes(&b), 8);
}

/// A multishot RECV with MSG_PEEK gets the same data again. On the kernel it repeats until other requests must run.
#[case]
fn peeks_at_the_same(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(64));
    let buffers = BufferRing::filled(&ring, 1, 64, 4);
    send(&a, &counted(20));
    ring.go(recv_multishot(fd(&b), 0).op_flags(libc::MSG_PEEK as u32));
    for _ in 0..10 {
        let cqe = ring.wait();
        assert_eq!((cqe.res, cqe.flags & IORING_CQE_F_MORE != 0), (4, true));
        assert_eq!(buffers.content(buffer_of(&cqe).expect("a buffer"), 4), counted(4));
    }
    ring.close_fd();
}

#[case]
fn data_around_urgent_data(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 16, 4);
    send(&a, &counted(6));
    // SAFETY: one byte is passed, which lives until the call returns.
    assert_eq!(unsafe { libc::send(fd(&a), b"!".as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
    send(&a, &counted(9));
    ring.go(recv_multishot(fd(&b), 0));
    let results: Vec<_> = ring.wait_all(5).iter().map(|cqe| cqe.res).collect();
    assert_eq!(results, [4, 2, 4, 4, 1]);
    assert_eq!(buffers.content(2, 4), counted(4));
    ring.expect_quiet();
}

#[case]
fn data_and_the_end(cx: &Context) {
    let (a, _b, mut ring, _buffers) = started(cx, 8, 16, 4, 0);
    send(&a, &counted(10));
    drop(a);
    let shots: Vec<_> = ring.wait_all(4).iter().map(shot).collect();
    assert_eq!(shots, [(4, true, Some(0)), (4, true, Some(1)), (2, true, Some(2)), (0, false, None)]);
}

#[case]
fn data_and_a_reset(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    send(&a, &counted(10));
    send(&b, b"unread");
    drop(a); // with unread data: a reset
    let_arrive();
    ring.go(recv_multishot(fd(&b), 0));
    let shots: Vec<_> = ring.wait_all(4).iter().map(shot).collect();
    let end = (-libc::ECONNRESET, false, None);
    assert_eq!(shots, [(4, true, Some(0)), (4, true, Some(1)), (2, true, Some(2)), end]);
}

#[case]
fn hundreds_of_buffers(cx: &Context) {
    let (a, _b, mut ring, buffers) = started(cx, 256, 512, 1, 0);
    send(&a, &counted(250));
    let shots: Vec<_> = ring.wait_all(250).iter().map(shot).collect();
    for (id, shot) in shots.iter().enumerate() {
        assert_eq!(*shot, (1, true, Some(id as u16)));
    }
    assert_eq!(buffers.content(0, 250), counted(250));
    ring.expect_quiet();
}

/// Two multishot receives, each with its own buffers, get all data of both streams.
#[case]
fn two_streams_take_turns(cx: &Context) {
    let ((a, b), (c, d), mut ring) = (tcp_pair(), tcp_pair(), cx.ring(128));
    let first = BufferRing::filled(&ring, 1, 128, 2);
    let second = BufferRing::filled(&ring, 2, 128, 2);
    ring.go(recv_multishot(fd(&b), 0).data(1));
    ring.go(recv_multishot(fd(&d), 0).buffer(2).data(2));
    send(&a, &counted(140));
    send(&c, &counted(140));
    let cqes = ring.wait_all(140);
    for (user_data, buffers) in [(1, &first), (2, &second)] {
        let own: Vec<_> = cqes.iter().filter(|cqe| cqe.user_data == user_data).map(shot).collect();
        assert_eq!(own.len(), 70);
        for (id, shot) in own.iter().enumerate() {
            assert_eq!(*shot, (2, true, Some(id as u16)));
        }
        assert_eq!(buffers.content(0, 140), counted(140));
    }
}

#[case]
fn a_registered_socket(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 16, 4);
    ring.register_files(&[fd(&b)]);
    drop(b);
    ring.go(recv_multishot(0, 0).with(IOSQE_FIXED_FILE));
    for round in 0..2u16 {
        send(&a, &counted(14));
        let full = |id| (4, Some(round * 4 + id), true);
        assert_eq!(shots(&mut ring, 4), [full(0), full(1), full(2), (2, Some(round * 4 + 3), false)]);
        assert_eq!(buffers.content(round * 4 + 2, 4), [8, 9, 10, 11]);
    }
}

#[case]
fn a_number_closed_in_between(cx: &Context) {
    let (a, b, mut ring, _buffers) = started(cx, 8, 16, 4, 0);
    send(&a, &counted(10));
    assert_eq!(shots(&mut ring, 3).len(), 3);
    drop(b);
    send(&a, &counted(10));
    let full = |id| (4, Some(id), true);
    assert_eq!(shots(&mut ring, 3), [full(3), full(4), (2, Some(5), false)]);
}

#[case]
fn stream_of_a_unix_socket(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 16, 4);
    put(&a, &counted(6));
    put(&a, &counted(6));
    ring.go(recv_multishot(fd(&b), 0));
    let results: Vec<_> = ring.wait_all(3).iter().map(|cqe| cqe.res).collect();
    assert_eq!(results, [4, 4, 4]);
}

#[case(undisturbed)]
fn waits_for_the_low_mark(cx: &Context) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 16, 4);
    let mark = 8i32;
    let (value, bytes) = ((&raw const mark).cast(), size_of::<i32>() as u32);
    // SAFETY: the option's value is an int, which lives until the call returns.
    let set = unsafe { libc::setsockopt(fd(&b), libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, bytes) };
    assert_eq!(set, 0);
    ring.go(recv_multishot(fd(&b), 0));
    send(&a, &counted(6));
    ring.expect_quiet();
    send(&a, &counted(6));
    let results: Vec<_> = ring.wait_all(3).iter().map(|cqe| cqe.res).collect();
    assert_eq!(results, [4, 4, 4]);
}
