//! MSG_RING: CQEs and files from one ring to another, and IORING_REGISTER_SEND_MSG_RING.

use super::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};

topic!(since: "5.18", source: "io_uring_enter(2), io_uring/msg_ring.c");

fn data(target: &Ring, user_data: u64, len: u32) -> Sqe {
    prep(Opcode::MsgRing, target.fd, IORING_MSG_DATA, len, user_data)
}

fn file_message(target: &Ring, source: u32, target_index: u32, user_data: u64) -> Sqe {
    let sqe = prep(Opcode::MsgRing, target.fd, IORING_MSG_SEND_FD, 0, user_data);
    Sqe { addr3: source.into(), file_index: target_index, ..sqe }
}

fn plain(cx: &Context) -> Ring {
    cx.ring_with(8, 0)
}

fn deferred(cx: &Context) -> Ring {
    cx.ring_with(8, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN)
}

fn disabled(cx: &Context) -> Ring {
    cx.ring_with(8, IORING_SETUP_R_DISABLED)
}

fn got(target: &mut Ring) -> (u64, i32, u32) {
    let cqe = target.wait();
    (cqe.user_data, cqe.res, cqe.flags)
}

#[case]
fn data_arrives(cx: &Context) {
    let (mut sender, mut target) = (cx.ring(4), plain(cx));
    assert_eq!(sender.run(data(&target, 77, 5)), 0);
    assert_eq!(got(&mut target), (77, 5, 0));
    assert_eq!(sender.run(data(&target, 78, (-9i32) as u32)), 0);
    assert_eq!(got(&mut target), (78, -9, 0));
    target.expect_quiet();
}

#[case(since = "6.3")]
fn data_with_flags(cx: &Context) {
    let (mut sender, mut target) = (cx.ring(4), plain(cx));
    let sqe = data(&target, 1, 2).op_flags(IORING_MSG_RING_FLAGS_PASS).file_index(0x8000_0042);
    assert_eq!(sender.run(sqe), 0);
    assert_eq!(got(&mut target), (1, 2, 0x8000_0042));
}

#[case]
fn data_with_the_success_skipped(cx: &Context) {
    let (mut sender, mut target) = (cx.ring(4), plain(cx));
    sender.go(data(&target, 1, 2).with(IOSQE_CQE_SKIP_SUCCESS));
    assert_eq!(got(&mut target), (1, 2, 0));
    sender.expect_quiet();
}

#[case]
fn many_messages_keep_their_order(cx: &Context) {
    let (mut sender, mut target) = (cx.ring(8), plain(cx));
    for round in 0..20u32 {
        let sqes: Vec<_> = (0..8).map(|n| data(&target, (8 * round + n).into(), n).data(1)).collect();
        sender.go_all(&sqes);
        assert!(sender.wait_all(8).iter().all(|cqe| cqe.res == 0));
        for n in 0..8 {
            assert_eq!(got(&mut target), ((8 * round + n).into(), n as i32, 0));
        }
    }
}

#[case]
fn a_message_to_itself(cx: &Context) {
    let mut ring = cx.ring(4);
    let sqe = data(&ring, 5, 6);
    ring.go(sqe.data(1));
    assert_eq!(ring.wait_sorted(2), [(1, 0), (5, 6)]);
}

#[case(since = "6.1")]
fn to_a_deferred_ring(cx: &Context) {
    let (mut sender, mut target) = (cx.ring(4), deferred(cx));
    assert_eq!(sender.run(data(&target, 1, 2)), 0);
    assert_eq!(target.cq_ready(), 0, "it comes when the owner asks");
    assert_eq!(got(&mut target), (1, 2, 0));
}

#[case(since = "6.1")]
fn to_a_deferred_ring_that_waits(cx: &Context) {
    let mut target = deferred(cx);
    let (number, tid) = (target.fd, gettid());
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sender = cx.ring(4);
            wait_thread_asleep(tid);
            sender.run(prep(Opcode::MsgRing, number, IORING_MSG_DATA, 2, 1))
        });
        assert_eq!(target.submit_and_wait(1), 0);
        assert_eq!(got(&mut target), (1, 2, 0));
        assert_eq!(sender.join().expect("the sender"), 0);
    });
}

#[case]
fn to_a_ring_that_waits_in_another_thread(cx: &Context) {
    let mut target = plain(cx);
    let number = target.fd;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sender = cx.ring(4);
            for n in 0..50u32 {
                // Some come before the target's thread sleeps, some after.
                std::thread::sleep(std::time::Duration::from_micros(200));
                assert_eq!(sender.run(prep(Opcode::MsgRing, number, IORING_MSG_DATA, n, n.into())), 0);
            }
        });
        for n in 0..50 {
            assert_eq!(target.submit_and_wait(1), 0);
            assert_eq!(got(&mut target), (n, n as i32, 0));
        }
        sender.join().expect("the sender");
    });
}

#[case]
fn to_a_full_ring_overflows(cx: &Context) {
    let (mut sender, mut target) = (cx.ring(4), cx.ring_with(4, 0));
    for n in 0..20 {
        assert_eq!(sender.run(data(&target, n, 0)), 0);
    }
    assert_eq!(target.cq_ready(), 8);
    assert_ne!(target.sq_flags() & IORING_SQ_CQ_OVERFLOW, 0);
    for n in 0..20 {
        assert_eq!(got(&mut target), (n, 0, 0));
    }
}

#[case]
fn to_a_disabled_ring_is_ebadfd(cx: &Context) {
    let (mut sender, target) = (cx.ring(4), disabled(cx));
    assert_eq!(sender.run(data(&target, 1, 2)), -libc::EBADFD);
}

#[case]
fn to_a_ring_that_was_enabled(cx: &Context) {
    let (mut sender, mut target) = (cx.ring(4), disabled(cx));
    assert_eq!(target.register(IORING_REGISTER_ENABLE_RINGS, 0, 0), 0);
    assert_eq!(sender.run(data(&target, 1, 2)), 0);
    assert_eq!(got(&mut target), (1, 2, 0));
}

#[case]
fn to_another_file_is_ebadfd(cx: &Context) {
    let (mut sender, (reader, _writer)) = (cx.ring(4), pipe());
    assert_eq!(sender.run(prep(Opcode::MsgRing, fd(&reader), IORING_MSG_DATA, 2, 1)), -libc::EBADFD);
}

#[case]
fn to_a_bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(prep(Opcode::MsgRing, 9999, IORING_MSG_DATA, 2, 1)), -EBADF);
}

#[case]
fn unknown_command_is_einval(cx: &Context) {
    let (mut sender, target) = (cx.ring(4), plain(cx));
    assert_eq!(sender.run(Sqe { addr: 2, ..data(&target, 1, 2) }), -EINVAL);
    assert_eq!(sender.run(Sqe { addr: 1 << 32, ..data(&target, 1, 2) }), 0, "32 bits are looked at");
}

#[case]
fn unknown_flag_is_einval(cx: &Context) {
    let (mut sender, target) = (cx.ring(4), plain(cx));
    assert_eq!(sender.run(data(&target, 1, 2).op_flags(4)), -EINVAL);
}

#[case]
fn data_with_unused_fields_is_einval(cx: &Context) {
    let (mut sender, target) = (cx.ring(4), plain(cx));
    let good = data(&target, 1, 2);
    assert_eq!(sender.run(good.buffer(1)), -EINVAL);
    assert_eq!(sender.run(good.file_index(1)), -EINVAL);
    assert_eq!(sender.run(Sqe { addr3: 1, ..good }), -EINVAL);
    assert_eq!(sender.run(good.op_flags(IORING_MSG_RING_CQE_SKIP)), -EINVAL);
}

#[case]
fn async_and_linked(cx: &Context) {
    let (mut sender, mut target) = (cx.ring(4), plain(cx));
    sender.go_all(&[
        data(&target, 1, 1).with(IOSQE_ASYNC | IOSQE_IO_LINK).data(10),
        data(&target, 2, 2).with(IOSQE_ASYNC).data(11),
    ]);
    assert_eq!(sender.wait_ordered(2), [(10, 0), (11, 0)]);
    assert_eq!((got(&mut target), got(&mut target)), ((1, 1, 0), (2, 2, 0)));
}

#[case]
fn signals_the_targets_eventfd(cx: &Context) {
    let (mut sender, mut target, mut event) = (cx.ring(4), plain(cx), eventfd(0, 0));
    let number = fd(&event);
    assert_eq!(target.register(IORING_REGISTER_EVENTFD, address(&number) as usize, 1), 0);
    assert_eq!(sender.run(data(&target, 1, 2)), 0);
    let mut count = [0u8; 8];
    event.read_exact(&mut count).expect("read the eventfd");
    assert_eq!(u64::from_ne_bytes(count), 1);
    assert_eq!(got(&mut target), (1, 2, 0));
}

#[case]
fn makes_the_targets_descriptor_readable(cx: &Context) {
    let (mut sender, mut target) = (cx.ring(4), plain(cx));
    let mut poll = libc::pollfd { fd: target.fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd that lives until the call returns.
    assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 0) }, 0);
    assert_eq!(sender.run(data(&target, 1, 2)), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 10_000) }, 1);
    assert_eq!(got(&mut target), (1, 2, 0));
}

#[case]
fn ends_no_counting_timeout_but_a_wait(cx: &Context) {
    let (mut sender, mut target) = (cx.ring(4), plain(cx));
    let long = ms(60_000);
    target.go(sqe::timeout(&long, 1, 0).data(9));
    assert_eq!(sender.run(data(&target, 1, 2)), 0);
    let first = got(&mut target);
    assert_eq!(first, (1, 2, 0));
    // A message is a CQE like any other: it counts.
    assert_eq!(got(&mut target), (9, 0, 0));
}

/// A sender with a pipe in its slots 0 and 1, and a target with empty slots.
fn with_files(cx: &Context, mut target: Ring, slots: usize) -> (Ring, Ring) {
    let sender = cx.ring(8);
    let (reader, writer) = pipe();
    sender.register_files(&[fd(&reader), fd(&writer), -1]);
    target.register_files(&vec![-1; slots]);
    target.expect_quiet();
    (sender, target)
}

fn slots_pass(sender: &mut Ring, target: &mut Ring, reader: i32) {
    let mut buffer = [0u8; 3];
    assert_eq!(sender.run(sqe::write(1, b"abc", 0).with(IOSQE_FIXED_FILE)), 3);
    assert_eq!(target.run(sqe::read(reader, &mut buffer, 0).with(IOSQE_FIXED_FILE)), 3);
    assert_eq!(&buffer, b"abc");
}

#[case(since = "6.0")]
fn file_to_a_slot(cx: &Context) {
    let (mut sender, mut target) = with_files(cx, plain(cx), 4);
    assert_eq!(sender.run(file_message(&target, 0, 3, 77)), 0);
    assert_eq!(got(&mut target), (77, 0, 0));
    slots_pass(&mut sender, &mut target, 2);
}

#[case(since = "6.0")]
fn file_to_a_free_slot(cx: &Context) {
    let (mut sender, mut target) = with_files(cx, plain(cx), 4);
    let any = IORING_FILE_INDEX_ALLOC as u32;
    assert_eq!(sender.run(file_message(&target, 1, any, 77)), 0);
    assert_eq!(sender.run(file_message(&target, 0, any, 78)), 1);
    assert_eq!((got(&mut target), got(&mut target)), ((77, 0, 0), (78, 1, 0)));
    slots_pass(&mut sender, &mut target, 1);
}

/// Task work brings them, the last first. So the last gets the first free slot.
#[case(own_flags, undisturbed, since = "6.1")]
fn files_sent_together_to_a_deferring_ring_come_last_first(cx: &Context) {
    let (mut sender, mut target) = with_files(cx, deferred(cx), 4);
    let any = IORING_FILE_INDEX_ALLOC as u32;
    sender.go_all(&[1, 2, 3].map(|n| file_message(&target, 0, any, 70 + n).data(n)));
    assert_eq!([(); 3].map(|()| got(&mut target)), [(73, 0, 0), (72, 1, 0), (71, 2, 0)]);
    assert_eq!(sender.wait_sorted(3), [(1, 2), (2, 1), (3, 0)]);
}

#[case(since = "6.0")]
fn file_without_a_cqe(cx: &Context) {
    let (mut sender, mut target) = with_files(cx, plain(cx), 4);
    assert_eq!(sender.run(file_message(&target, 0, 3, 77).op_flags(IORING_MSG_RING_CQE_SKIP)), 0);
    target.expect_quiet();
    slots_pass(&mut sender, &mut target, 2);
}

#[case]
fn file_to_itself_is_einval(cx: &Context) {
    let (mut sender, _target) = with_files(cx, plain(cx), 4);
    let sqe = file_message(&sender, 0, 3, 77);
    assert_eq!(sender.run(sqe), -EINVAL);
}

#[case]
fn file_from_an_empty_slot_is_ebadf(cx: &Context) {
    let (mut sender, target) = with_files(cx, plain(cx), 4);
    assert_eq!(sender.run(file_message(&target, 2, 3, 77)), -EBADF);
    assert_eq!(sender.run(file_message(&target, 9, 3, 77)), -EBADF);
}

#[case]
fn file_to_a_ring_without_a_table_fails(cx: &Context) {
    let (mut sender, _) = with_files(cx, plain(cx), 1);
    let target = plain(cx);
    assert_eq!(sender.run(file_message(&target, 0, 1, 77)), -libc::ENXIO);
    assert_eq!(sender.run(file_message(&target, 0, IORING_FILE_INDEX_ALLOC as u32, 77)), -libc::ENFILE);
}

#[case]
fn file_beyond_the_table_is_einval(cx: &Context) {
    let (mut sender, target) = with_files(cx, plain(cx), 2);
    assert_eq!(sender.run(file_message(&target, 0, 3, 77)), -EINVAL);
}

#[case]
fn file_with_a_length_is_einval(cx: &Context) {
    let (mut sender, target) = with_files(cx, plain(cx), 2);
    assert_eq!(sender.run(Sqe { len: 1, ..file_message(&target, 0, 1, 77) }), -EINVAL);
}

#[case(since = "6.0")]
fn file_to_a_full_table_is_enfile(cx: &Context) {
    let (mut sender, mut target) = with_files(cx, plain(cx), 1);
    let any = IORING_FILE_INDEX_ALLOC as u32;
    assert_eq!(sender.run(file_message(&target, 0, any, 77)), 0);
    assert_eq!(sender.run(file_message(&target, 0, any, 78)), -libc::ENFILE);
    assert_eq!(got(&mut target), (77, 0, 0));
    target.expect_quiet();
}

#[case(since = "6.1")]
fn file_to_a_deferred_ring(cx: &Context) {
    let mut target = deferred(cx);
    target.register_files(&[-1, -1]);
    let (reader, writer) = pipe();
    let number = target.fd;
    // From another thread: the kernel installs the file when the owner runs task work.
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sender = cx.ring(8);
            sender.register_files(&[fd(&reader), fd(&writer)]);
            let sqe = prep(Opcode::MsgRing, number, IORING_MSG_SEND_FD, 0, 77);
            sender.run(sqe.file_index(2))
        });
        assert_eq!(target.submit_and_wait(1), 0);
        assert_eq!(got(&mut target), (77, 0, 0));
        assert_eq!(sender.join().expect("the sender"), 0);
    });
}

#[case]
fn file_to_a_disabled_ring_is_ebadfd(cx: &Context) {
    let (mut sender, _) = with_files(cx, plain(cx), 1);
    let target = disabled(cx);
    target.register_files(&[-1]);
    assert_eq!(sender.run(file_message(&target, 0, 1, 77)), -libc::EBADFD);
}

#[case]
fn senders_in_several_threads(cx: &Context) {
    const EACH: u64 = 500;
    let mut target = cx.ring_with(8, 0);
    let number = target.fd;
    let mut next = [0u64; 3];
    std::thread::scope(|scope| {
        for who in 0..3u64 {
            scope.spawn(move || {
                let mut sender = cx.ring(4);
                for n in 0..EACH {
                    assert_eq!(sender.run(prep(Opcode::MsgRing, number, IORING_MSG_DATA, 0, who << 32 | n)), 0);
                }
            });
        }
        for _ in 0..3 * EACH {
            let (user_data, _, _) = got(&mut target);
            let who = (user_data >> 32) as usize;
            assert_eq!(user_data as u32 as u64, next[who], "in the sender's order");
            next[who] += 1;
        }
    });
    target.expect_quiet();
}

#[case]
fn in_both_directions_at_once(cx: &Context) {
    const ROUNDS: u64 = 300;
    let numbers = [AtomicU32::new(0), AtomicU32::new(0)];
    let run = |me: usize| {
        let mut ring = cx.ring_with(8, 0);
        numbers[me].store(ring.fd as u32, Ordering::Release);
        let other = loop {
            match numbers[1 - me].load(Ordering::Acquire) {
                0 => std::thread::yield_now(),
                other => break other as i32,
            }
        };
        let (mut sent, mut received) = (0, 0);
        for n in 0..ROUNDS {
            ring.go(prep(Opcode::MsgRing, other, IORING_MSG_DATA, 1, n).data(1 << 40));
        }
        while sent < ROUNDS || received < ROUNDS {
            let cqe = ring.wait();
            if cqe.user_data == 1 << 40 {
                assert_eq!(cqe.res, 0);
                sent += 1;
            } else {
                assert_eq!((cqe.user_data, cqe.res), (received, 1));
                received += 1;
            }
        }
        // Neither ring may go while the other still sends.
        numbers[me].store(u32::MAX, Ordering::Release);
        while numbers[1 - me].load(Ordering::Acquire) != u32::MAX {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(0));
        scope.spawn(|| run(1));
    });
}

#[case]
fn memory_written_before_is_seen(cx: &Context) {
    let mut target = plain(cx);
    let (number, shared) = (target.fd, AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender = cx.ring(4);
            for n in 1..=200u32 {
                shared.store(n, Ordering::Relaxed);
                assert_eq!(sender.run(prep(Opcode::MsgRing, number, IORING_MSG_DATA, n, 0)), 0);
            }
        });
        for n in 1..=200u32 {
            assert_eq!(got(&mut target).1, n as i32);
            assert!(shared.load(Ordering::Relaxed) >= n);
        }
    });
}

#[case]
fn between_processes(cx: &Context) {
    let mut target = plain(cx);
    let number = target.fd;
    let status = in_child(|| {
        let mut sender = cx.ring_with(4, 0);
        for n in 0..3 {
            assert_eq!(sender.run(prep(Opcode::MsgRing, number, IORING_MSG_DATA, 1, n)), 0);
        }
    });
    assert_eq!(status, 0);
    for n in 0..3 {
        assert_eq!(got(&mut target), (n, 1, 0));
    }
}

#[case(since = "6.1")]
fn to_a_deferred_ring_of_another_process(cx: &Context) {
    let mut target = deferred(cx);
    let number = target.fd;
    let status = in_child(|| {
        let mut sender = cx.ring_with(4, 0);
        assert_eq!(sender.run(prep(Opcode::MsgRing, number, IORING_MSG_DATA, 1, 7)), 0);
    });
    assert_eq!(status, 0);
    assert_eq!(got(&mut target), (7, 1, 0));
}

#[case]
fn to_a_polled_ring(cx: &Context) {
    let (mut sender, mut target) = (cx.ring(4), cx.ring_with(8, IORING_SETUP_SQPOLL));
    for n in 0..20 {
        assert_eq!(sender.run(data(&target, n, 0)), 0);
        assert_eq!(got(&mut target), (n, 0, 0));
    }
}

#[case]
fn to_a_polled_ring_of_another_process(cx: &Context) {
    let mut target = cx.ring_with(8, IORING_SETUP_SQPOLL);
    let number = target.fd;
    let status = in_child(|| {
        let mut sender = cx.ring_with(4, 0);
        assert_eq!(sender.run(prep(Opcode::MsgRing, number, IORING_MSG_DATA, 1, 7)), 0);
    });
    assert_eq!(status, 0);
    assert_eq!(got(&mut target), (7, 1, 0));
}

#[case(own_flags, since = "6.13")]
fn register_sends_data(cx: &Context) {
    let mut target = plain(cx);
    let sqe = data(&target, 77, 5);
    assert_eq!(cx.door.register(-1, IORING_REGISTER_SEND_MSG_RING, address(&sqe) as usize, 1), 0);
    assert_eq!(got(&mut target), (77, 5, 0));
}

#[case(own_flags)]
fn register_checks_its_arguments(cx: &Context) {
    let target = plain(cx);
    let good = data(&target, 77, 5);
    let call =
        |sqe: &Sqe, count| cx.door.register(-1, IORING_REGISTER_SEND_MSG_RING, address(sqe) as usize, count) as i32;
    assert_eq!(call(&good, 0), -EINVAL);
    assert_eq!(call(&good, 2), -EINVAL);
    assert_eq!(call(&good.with(IOSQE_ASYNC), 1), -EINVAL);
    assert_eq!(call(&sqe::nop(), 1), -EINVAL);
    assert_eq!(call(&Sqe { addr: IORING_MSG_SEND_FD, ..good }, 1), -EINVAL);
    assert_eq!(call(&Sqe { fd: 9999, ..good }, 1), -EBADF);
    let (reader, _writer) = pipe();
    assert_eq!(call(&Sqe { fd: fd(&reader), ..good }, 1), -libc::EBADFD);
    assert_eq!(cx.door.register(-1, IORING_REGISTER_SEND_MSG_RING, bad_address() as usize, 1) as i32, -EFAULT);
    assert_eq!(call(&data(&disabled(cx), 1, 1), 1), -libc::EBADFD);
}
