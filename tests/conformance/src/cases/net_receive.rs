//! Data that arrives at a TCP socket which receives have emptied many times: none is overlooked.

use super::prelude::*;
use crate::buffers::*;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

topic!(since: "5.6", source: "io_uring_enter(2), io_uring/net.c");

/// Room of the receives: as much as comes, and more.
const ROOMS: [usize; 2] = [6, 64];

/// A socket, its peer, and a ring whose receives of this room often found the socket empty.
fn emptied_often(cx: &Context, room: usize) -> (TcpStream, TcpStream, Ring) {
    let ((a, b), mut ring) = (tcp_pair(), cx.ring(8));
    receive_often(&mut ring, &a, &b, room);
    (a, b, ring)
}

fn receive_often(ring: &mut Ring, a: &TcpStream, mut b: &TcpStream, room: usize) {
    let mut memory = [0; 64];
    for number in 0..12u8 {
        ring.go(sqe::recv(fd(a), &mut memory[..room], 0));
        b.write_all(&[number; 6]).expect("send");
        assert_eq!(ring.wait().res, 6);
        assert_eq!(memory[..6], [number; 6]);
    }
}

/// Waits until data sent on loopback has surely arrived. No call reports that, since a receive may take it at once.
fn let_arrive() {
    std::thread::sleep(Duration::from_millis(5));
}

#[case]
fn data_between_two_receives(cx: &Context) {
    for room in ROOMS {
        let ((a, mut b, mut ring), mut memory) = (emptied_often(cx, room), [0; 64]);
        for _ in 0..3 {
            b.write_all(b"behind").expect("send");
            let_arrive();
            assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory[..room], 0)), 6);
        }
        assert_eq!(&memory[..6], b"behind");
    }
}

#[case]
fn data_while_nobody_submits(cx: &Context) {
    for room in ROOMS {
        let ((a, mut b, mut ring), mut memory) = (emptied_often(cx, room), [0; 64]);
        ring.go(sqe::recv(fd(&a), &mut memory[..room], 0));
        ring.expect_quiet();
        b.write_all(b"behind").expect("send");
        let_arrive();
        assert_eq!(ring.wait().res, 6);
    }
}

#[case(since = "5.19")]
fn more_than_there_was_room_for(cx: &Context) {
    for room in ROOMS {
        let ((a, mut b, mut ring), mut memory) = (emptied_often(cx, room), [0; 64]);
        ring.go(sqe::recv(fd(&a), &mut memory[..4], 0));
        b.write_all(b"first and last").expect("send");
        assert_eq!(ring.wait().res, 4);
        let_arrive();
        assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory[..4], 0)), 4);
        assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory, 0)), 6);
        assert_eq!(&memory[..6], b"d last");
    }
}

#[case(since = "5.19")]
fn the_end_between_two_receives(cx: &Context) {
    for room in ROOMS {
        let ((a, b, mut ring), mut memory) = (emptied_often(cx, room), [0; 64]);
        drop(b);
        let_arrive();
        assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory[..room], 0)), 0);
        assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory[..room], 0)), 0);
    }
}

#[case(since = "5.19")]
fn the_end_together_with_data(cx: &Context) {
    for room in ROOMS {
        for waits in [false, true] {
            let ((a, mut b, mut ring), mut memory) = (emptied_often(cx, room), [0; 64]);
            let receive = sqe::recv(fd(&a), &mut memory[..room], 0);
            if waits {
                ring.go(receive);
            }
            b.write_all(b"behind").expect("send");
            b.shutdown(Shutdown::Write).expect("shutdown");
            let_arrive();
            if !waits {
                ring.go(receive);
            }
            assert_eq!(ring.wait().res, 6);
            assert_eq!(ring.run(receive), 0);
        }
    }
}

#[case]
fn the_end_of_a_socket_shut_down_here(cx: &Context) {
    for room in ROOMS {
        let ((a, _b, mut ring), mut memory) = (emptied_often(cx, room), [0; 64]);
        a.shutdown(Shutdown::Read).expect("shutdown");
        assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory[..room], 0)), 0);
    }
}

#[case]
fn a_reset_after_data(cx: &Context) {
    for room in ROOMS {
        let ((a, mut b, mut ring), mut memory) = (emptied_often(cx, room), [0; 64]);
        ring.go(sqe::recv(fd(&a), &mut memory[..room], 0));
        b.write_all(b"behind").expect("send");
        assert_eq!(ring.wait().res, 6);
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        sys::set_option(&b, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
        drop(b);
        let_arrive();
        assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory[..room], 0)), -libc::ECONNRESET);
    }
}

#[case(since = "5.19")]
fn data_after_urgent_data(cx: &Context) {
    let ((a, mut b, mut ring), mut memory) = (emptied_often(cx, 64), [0; 64]);
    b.write_all(b"before").expect("send");
    // SAFETY: one byte is passed, which lives until the call returns.
    assert_eq!(unsafe { libc::send(fd(&b), b"!".as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
    b.write_all(b"behind it").expect("send");
    let_arrive();
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory, 0)), 6);
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory, 0)), 9);
    assert_eq!(&memory[..9], b"behind it");
}

#[case(since = "5.19")]
fn data_after_urgent_data_that_was_taken(cx: &Context) {
    let ((a, mut b, mut ring), mut memory) = (emptied_often(cx, 64), [0; 64]);
    b.write_all(b"before").expect("send");
    // SAFETY: one byte is passed, which lives until the call returns.
    assert_eq!(unsafe { libc::send(fd(&b), b"!".as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
    b.write_all(b"behind it").expect("send");
    let_arrive();
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory[..1], libc::MSG_OOB)), 1);
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory, 0)), 6);
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory, 0)), 9);
    assert_eq!(&memory[..9], b"behind it");
}

#[case(undisturbed)]
fn data_for_a_receive_cancelled_at_once(cx: &Context) {
    for room in ROOMS {
        let ((a, mut b, mut ring), mut memory) = (emptied_often(cx, room), [0; 64]);
        for _ in 0..2 {
            b.write_all(b"behind").expect("send");
            let_arrive();
            let receive = sqe::recv(fd(&a), &mut memory[..room], 0).data(1);
            ring.go_all(&[receive, sqe::cancel(1, 0).data(2)]);
            assert_eq!(ring.wait_sorted(2), [(1, 6), (2, -libc::ENOENT)]);
        }
    }
}

#[case(undisturbed)]
fn data_for_a_receive_that_is_out_of_time(cx: &Context) {
    for room in ROOMS {
        let ((a, mut b, mut ring), mut memory) = (emptied_often(cx, room), [0; 64]);
        for _ in 0..2 {
            b.write_all(b"behind").expect("send");
            let_arrive();
            let receive = sqe::recv(fd(&a), &mut memory[..room], 0).data(1).with(IOSQE_IO_LINK);
            ring.go_all(&[receive, sqe::link_timeout(&ms(0)).data(2)]);
            let [received, timeout] = ring.wait_sorted(2)[..] else { panic!("two CQEs") };
            assert_eq!(received, (1, 6));
            // Its timer starts after the receive, which has ended by then.
            assert!([(2, -libc::ENOENT), (2, -libc::ECANCELED)].contains(&timeout), "{timeout:?}");
        }
    }
}

#[case(undisturbed)]
fn data_is_there_when_the_submission_returns(cx: &Context) {
    for room in ROOMS {
        let ((a, mut b), mut ring, mut memory) = (tcp_pair(), cx.ring(8), [0; 64]);
        let receive = sqe::recv(fd(&a), &mut memory[..room], 0);
        for _ in 0..12 {
            b.write_all(b"behind").expect("send");
            let_arrive();
            ring.go(receive);
            assert_eq!(ring.peek().expect("a CQE").res, 6);
            ring.go(receive);
            b.write_all(b"behind").expect("send");
            assert_eq!(ring.wait().res, 6);
        }
    }
}

/// A receive fills memory up to the first page that must not be written. The other data stays in the socket.
#[case]
fn room_that_is_partly_none(cx: &Context) {
    const PAGE: usize = 4096;
    let (a, mut b, mut ring) = emptied_often(cx, 64);
    // The second page stays mapped: nothing else can get its address.
    let memory = sys::pages(2);
    sys::protect(&memory[PAGE..], libc::PROT_NONE);
    let page = memory.as_ptr() as u64;
    let send = |b: &mut TcpStream, byte: u8| {
        b.write_all(&[byte; 3000]).expect("send");
        let_arrive(); // in a segment of its own
    };
    (1..=3).for_each(|byte| send(&mut b, byte));
    let receive = Sqe { addr: page, len: 9000, ..sqe::recv(fd(&a), &mut [], 0) };
    let (mut left, mut memory) = (9000, vec![0; 9000]);
    let first = ring.run(receive);
    assert!(first == -libc::EFAULT || first > 0, "{first}");
    left -= first.max(0);
    while left > 0 {
        let count = ring.run(sqe::recv(fd(&a), &mut memory, 0));
        assert!(count > 0, "{count} with {left} left");
        left -= count;
    }
}

#[case]
fn data_below_the_low_mark(cx: &Context) {
    let ((a, mut b), mut ring, mut memory) = (tcp_pair(), cx.ring(8), [0; 64]);
    sys::set_option(&a, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &4i32);
    receive_often(&mut ring, &a, &b, 64);
    b.write_all(b"so").expect("send");
    let_arrive();
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory, 0)), 2);
}

#[case]
fn data_that_the_program_takes_itself(cx: &Context) {
    for room in ROOMS {
        let ((mut a, mut b, mut ring), mut memory) = (emptied_often(cx, room), [0; 64]);
        b.write_all(b"for it").expect("send");
        let_arrive();
        a.read_exact(&mut memory[..6]).expect("receive");
        ring.go(sqe::recv(fd(&a), &mut memory[..room], 0));
        ring.expect_quiet();
        b.write_all(b"behind").expect("send");
        assert_eq!(ring.wait().res, 6);
    }
}

#[case]
fn another_socket_under_the_number(cx: &Context) {
    for room in ROOMS {
        let ((a, _b, mut ring), mut memory) = (emptied_often(cx, room), [0; 64]);
        let (other, mut peer) = tcp_pair();
        peer.write_all(b"others").expect("send");
        let_arrive();
        // SAFETY: both numbers are open; `a` is a socket afterwards, too.
        assert_eq!(unsafe { libc::dup2(fd(&other), fd(&a)) }, fd(&a));
        assert_eq!(ring.run(sqe::recv(fd(&a), &mut memory[..room], 0)), 6);
        assert_eq!(&memory[..6], b"others");
    }
}

#[case(since = "5.19")]
fn a_registered_socket(cx: &Context) {
    let ((a, mut b), mut ring, mut memory) = (tcp_pair(), cx.ring(8), [0; 64]);
    assert_eq!(ring.register(IORING_REGISTER_FILES, [fd(&a)].as_ptr() as usize, 1), 0);
    let receive = Sqe { fd: 0, ..sqe::recv(fd(&a), &mut memory, 0) }.with(IOSQE_FIXED_FILE);
    for _ in 0..12 {
        ring.go(receive);
        b.write_all(b"again").expect("send");
        assert_eq!(ring.wait().res, 5);
    }
    b.write_all(b"last").expect("send");
    drop(b);
    let_arrive();
    assert_eq!(ring.run(receive), 4);
    assert_eq!(ring.run(receive), 0);
}

/// Reaps the CQEs of a multishot receive until it ends. Returns their bytes, and the last result.
fn shots(ring: &mut Ring, buffers: &mut BufferRing, wanted: usize) -> (Vec<u8>, Option<i32>) {
    let mut all = Vec::new();
    while all.len() < wanted {
        let (result, more, id) = next_shot(ring);
        let Some(id) = id.filter(|_| result > 0) else { return (all, Some(result)) };
        all.extend_from_slice(buffers.content(id, result as usize));
        buffers.give(id);
        assert!(more, "it goes on after {} bytes", all.len());
    }
    (all, None)
}

#[case(since = "6.0")]
fn the_end_of_a_multishot_receive(cx: &Context) {
    for room in ROOMS {
        let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
        let mut buffers = BufferRing::filled(&ring, 1, 8, room);
        ring.go(recv_multishot(fd(&a), 0));
        for _ in 0..12 {
            b.write_all(b"behind").expect("send");
            assert_eq!(shots(&mut ring, &mut buffers, 6), (b"behind".to_vec(), None));
        }
        b.write_all(b"at the end").expect("send");
        drop(b);
        let_arrive();
        assert_eq!(shots(&mut ring, &mut buffers, 11), (b"at the end".to_vec(), Some(0)));
    }
}

#[case(since = "6.0")]
fn data_for_a_multishot_receive(cx: &Context) {
    for room in ROOMS {
        let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
        let mut buffers = BufferRing::filled(&ring, 1, 8, room);
        ring.go(recv_multishot(fd(&a), 0));
        for round in 0..40usize {
            let bytes = vec![round as u8; 1 + round * 7 % 30];
            b.write_all(&bytes).expect("send");
            if round % 3 == 0 {
                let_arrive();
            }
            assert_eq!(shots(&mut ring, &mut buffers, bytes.len()), (bytes, None));
        }
    }
}

/// Starts a multishot receive, which empties its socket many times.
fn shot_often(cx: &Context, room: usize, flags: u32) -> (TcpStream, TcpStream, Ring, BufferRing) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    let mut buffers = BufferRing::filled(&ring, 1, 8, room);
    ring.go(recv_multishot(fd(&a), 0).data(1).op_flags(flags));
    for _ in 0..12 {
        b.write_all(b"behind").expect("send");
        assert_eq!(shots(&mut ring, &mut buffers, 6), (b"behind".to_vec(), None));
    }
    (a, b, ring, buffers)
}

#[case(since = "6.0")]
fn urgent_data_for_a_multishot_receive(cx: &Context) {
    let (_a, mut b, mut ring, mut buffers) = shot_often(cx, 64, 0);
    for _ in 0..2 {
        b.write_all(b"before").expect("send");
        // SAFETY: one byte is passed, which lives until the call returns.
        assert_eq!(unsafe { libc::send(fd(&b), b"!".as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
        b.write_all(b"behind it").expect("send");
        let_arrive();
        assert_eq!(shots(&mut ring, &mut buffers, 15), (b"beforebehind it".to_vec(), None));
        b.write_all(b"and so on").expect("send");
        assert_eq!(shots(&mut ring, &mut buffers, 9), (b"and so on".to_vec(), None));
    }
}

#[case(since = "6.0")]
fn an_error_after_data_for_a_multishot_receive(cx: &Context) {
    let (_a, mut b, mut ring, mut buffers) = shot_often(cx, 64, 0);
    b.write_all(b"behind").expect("send");
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    sys::set_option(&b, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    assert_eq!(shots(&mut ring, &mut buffers, 6), (b"behind".to_vec(), None));
    drop(b);
    assert_eq!(shots(&mut ring, &mut buffers, 1), (Vec::new(), Some(-libc::ECONNRESET)));
}

#[case(since = "6.0")]
fn a_multishot_receive_is_cancelled(cx: &Context) {
    for room in ROOMS {
        let (_a, _b, mut ring, _buffers) = shot_often(cx, room, 0);
        ring.go(sqe::cancel(1, 0).data(2));
        assert_eq!(ring.wait_sorted(2), [(1, -libc::ECANCELED), (2, 0)]);
    }
}

#[case(since = "6.0")]
fn a_multishot_receive_that_may_not_wait(cx: &Context) {
    for room in ROOMS {
        let (a, mut b, mut ring, mut buffers) = shot_often(cx, room, 0);
        ring.go(sqe::cancel(1, 0).data(2));
        assert_eq!(ring.wait_sorted(2), [(1, -libc::ECANCELED), (2, 0)]);
        b.write_all(b"behind").expect("send");
        let_arrive();
        ring.go(recv_multishot(fd(&a), 0).op_flags(libc::MSG_DONTWAIT as u32));
        assert_eq!(shots(&mut ring, &mut buffers, 7), (b"behind".to_vec(), Some(-libc::EAGAIN)));
    }
}

#[case(since = "5.19")]
fn a_stream_in_pieces(cx: &Context) {
    const BYTES: usize = 60_000;
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(8));
    let byte = |at: usize| (at * 31 + at / 251) as u8;
    let sender = std::thread::spawn(move || {
        let (mut at, mut step) = (0, 1usize);
        while at < BYTES {
            step = step * 5 % 193;
            let bytes: Vec<u8> = (at..(at + step).min(BYTES)).map(byte).collect();
            b.write_all(&bytes).expect("send");
            at += bytes.len();
            if step.is_multiple_of(11) {
                std::thread::sleep(Duration::from_micros(200)); // the receiver comes first here
            }
        }
    });
    let (mut at, mut memory) = (0, [0; 200]);
    loop {
        let room = 1 + at % memory.len();
        let count = ring.run(sqe::recv(fd(&a), &mut memory[..room], 0));
        assert!(count >= 0, "{count}");
        for taken in &memory[..count as usize] {
            assert_eq!(*taken, byte(at), "byte {at}");
            at += 1;
        }
        if count == 0 {
            break;
        }
    }
    assert_eq!(at, BYTES);
    sender.join().expect("the sender");
}
