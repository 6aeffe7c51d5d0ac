//! FUTEX_WAIT, FUTEX_WAKE and FUTEX_WAITV: requests that wait on and wake futexes, beside threads that use futex(2).

use super::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

topic!(since: "6.7", source: "io_uring_enter(2), io_uring/futex.c");

/// `FUTEX2_*` of linux/futex.h.
const U8: u32 = 0;
const U16: u32 = 1;
pub(super) const U32: u32 = 2;
pub(super) const U64: u32 = 3;
const NUMA: u32 = 4;
pub(super) const PRIVATE: u32 = 128;
const ANY: u64 = 0xffff_ffff;

pub(super) fn wait_on(word: &AtomicU32, value: u32) -> Sqe {
    request(Opcode::FutexWait, word, value.into(), ANY, U32 | PRIVATE)
}

fn wake(word: &AtomicU32, count: u32) -> Sqe {
    request(Opcode::FutexWake, word, count.into(), ANY, U32 | PRIVATE)
}

fn request(opcode: Opcode, word: &AtomicU32, value: u64, mask: u64, flags: u32) -> Sqe {
    Sqe { addr3: mask, ..prep(opcode, flags as i32, address(word), 0, value) }
}

/// Submits these and returns the next `count` results, sorted.
fn ended(ring: &mut Ring, sqes: &[Sqe], count: usize) -> Vec<(u64, i32)> {
    ring.go_all(sqes);
    ring.wait_sorted(count)
}

/// futex(2)'s FUTEX_WAKE_BITSET. Returns the number woken.
pub(super) fn wake_now(word: &AtomicU32, count: i32, mask: u32, operation: i32) -> i32 {
    // SAFETY: the word belongs to this case; nothing is written.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, count, 0usize, 0usize, mask) as i32 }
}

pub(super) const WAKE_PRIVATE: i32 = libc::FUTEX_WAKE_BITSET | libc::FUTEX_PRIVATE_FLAG;
pub(super) const WAKE_SHARED: i32 = libc::FUTEX_WAKE_BITSET;

pub(super) fn wake_one(word: &AtomicU32) -> i32 {
    wake_now(word, 1, u32::MAX, WAKE_PRIVATE)
}

/// Wakes until `count` were woken, for waits that queue a little later.
pub(super) fn wake_in_time(word: &AtomicU32, count: i32) {
    let (begun, mut woken) = (Instant::now(), 0);
    while woken < count {
        woken += wake_now(word, count - woken, u32::MAX, WAKE_PRIVATE);
        assert!(begun.elapsed() < crate::ring::PATIENCE, "{woken} of {count} were woken");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[case]
fn wait_ends_with_a_wake(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go(wait_on(&word, 0));
    ring.expect_quiet();
    assert_eq!(wake_one(&word), 1);
    assert_eq!(ring.wait().res, 0);
    assert_eq!(wake_one(&word), 0);
}

#[case]
fn wait_is_queued_when_submission_returns(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    for _ in 0..100 {
        ring.go(wait_on(&word, 0));
        assert_eq!(wake_one(&word), 1);
        assert_eq!(ring.wait().res, 0);
    }
}

#[case]
fn wait_on_another_value_is_eagain(cx: &Context) {
    let word = AtomicU32::new(1);
    assert_eq!(cx.ring(4).run(wait_on(&word, 0)), -EAGAIN);
    assert_eq!(cx.ring(4).run(wait_on(&word, 2).with(IOSQE_ASYNC)), -EAGAIN);
}

#[case]
fn wait_with_async(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(7), cx.ring(4));
    ring.go(wait_on(&word, 7).with(IOSQE_ASYNC));
    ring.expect_quiet();
    wake_in_time(&word, 1);
    assert_eq!(ring.wait().res, 0);
}

#[case]
fn wait_that_skips_success(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go(wait_on(&word, 0).with(IOSQE_CQE_SKIP_SUCCESS));
    assert_eq!(wake_one(&word), 1);
    ring.expect_quiet();
    assert_eq!(ring.run(wait_on(&word, 1).with(IOSQE_CQE_SKIP_SUCCESS)), -EAGAIN);
}

#[case]
fn waits_end_in_order(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go_all(&[wait_on(&word, 0).data(1), wait_on(&word, 0).data(2), wait_on(&word, 0).data(3)]);
    for expected in 1..=3 {
        assert_eq!(wake_one(&word), 1);
        let cqe = ring.wait();
        assert_eq!((cqe.user_data, cqe.res), (expected, 0));
    }
}

#[case]
fn wakes_no_more_than_asked(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go_all(&[wait_on(&word, 0).data(1), wait_on(&word, 0).data(2), wait_on(&word, 0).data(3)]);
    assert_eq!(wake_now(&word, 2, u32::MAX, WAKE_PRIVATE), 2);
    assert_eq!(ring.wait_sorted(2), [(1, 0), (2, 0)]);
    ring.expect_quiet();
    assert_eq!(wake_now(&word, i32::MAX, u32::MAX, WAKE_PRIVATE), 1);
    assert_eq!(ring.wait().user_data, 3);
}

/// Starts a thread that waits until it is woken. Returns once that thread sleeps.
fn sleep_on(word: &'static AtomicU32) -> std::thread::JoinHandle<i64> {
    asleep_in(move || {
        let operation = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word lives for ever, and there is no timeout.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 0, 0usize, 0usize, u32::MAX) }
    })
}

#[case]
fn wakes_a_thread(cx: &Context) {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let (sleeper, mut ring, begun) = (sleep_on(&WORD), cx.ring(4), Instant::now());
    while ring.run(wake(&WORD, 1)) == 0 {
        assert!(begun.elapsed() < crate::ring::PATIENCE, "the thread sleeps at last");
    }
    assert_eq!(sleeper.join().expect("the thread"), 0);
}

#[case]
fn wake_of_nobody_is_zero(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    assert_eq!(ring.run(wake(&word, 1)), 0);
    assert_eq!(ring.run(wake(&word, i32::MAX as u32)), 0);
    assert_eq!(ring.run(wake(&word, 1).with(IOSQE_ASYNC)), 0);
}

#[case]
fn wake_of_no_waiter_at_all_wakes_none(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go(wait_on(&word, 0).data(1));
    assert_eq!(ring.run(wake(&word, 0)), 0);
    ring.expect_quiet();
    // More than an int holds is read as a negative count, which is reached at once.
    ring.go(wait_on(&word, 0).data(2));
    assert_eq!(ended(&mut ring, &[wake(&word, u32::MAX).data(3)], 2), [(1, 0), (3, 1)]);
    assert_eq!(wake_one(&word), 1);
    assert_eq!(ring.wait().user_data, 2);
}

#[case]
fn wake_by_request_ends_a_wait(cx: &Context) {
    let (word, mut ring, mut other) = (AtomicU32::new(0), cx.ring(4), cx.ring(4));
    ring.go(wait_on(&word, 0).data(1));
    assert_eq!(other.run(wake(&word, 4)), 1);
    assert_eq!(ring.wait().res, 0);
    assert_eq!(ended(&mut ring, &[wait_on(&word, 0).data(1), wake(&word, 4).data(2)], 2), [(1, 0), (2, 1)]);
}

#[case]
fn bits_must_meet(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go(Sqe { addr3: 0b01, ..wait_on(&word, 0) }.data(1));
    assert_eq!(wake_now(&word, 1, 0b10, WAKE_PRIVATE), 0);
    assert_eq!(ring.run(Sqe { addr3: 0b1110, ..wake(&word, 1) }), 0);
    ring.expect_quiet();
    assert_eq!(wake_now(&word, 1, 0b11, WAKE_PRIVATE), 1);
    assert_eq!(ring.wait().res, 0);
}

#[case]
fn several_bits(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    let with = |mask: u64, data| Sqe { addr3: mask, ..wait_on(&word, 0) }.data(data);
    ring.go_all(&[with(1, 1), with(2, 2), with(3, 3)]);
    assert_eq!(wake_now(&word, 9, 2, WAKE_PRIVATE), 2);
    assert_eq!(ring.wait_sorted(2), [(2, 0), (3, 0)]);
    assert_eq!(ended(&mut ring, &[wake(&word, 1).data(7)], 2), [(1, 0), (7, 1)]);
}

#[case]
fn no_bits_are_einval(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    assert_eq!(ring.run(Sqe { addr3: 0, ..wait_on(&word, 0) }), -EINVAL);
    assert_eq!(ring.run(Sqe { addr3: 0, ..wake(&word, 1) }), -EINVAL);
}

#[case]
fn private_and_shared_do_not_meet(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go(request(Opcode::FutexWait, &word, 0, ANY, U32));
    assert_eq!(wake_one(&word), 0);
    assert_eq!(ring.run(request(Opcode::FutexWake, &word, 1, ANY, U32 | PRIVATE).data(2)), 0);
    assert_eq!(wake_now(&word, 1, u32::MAX, WAKE_SHARED), 1);
    assert_eq!(ring.wait().res, 0);
}

#[case]
fn shared_with_another_process(cx: &Context) {
    let word = shared_word();
    let mut ring = cx.ring(4);
    ring.go(request(Opcode::FutexWait, word, 0, ANY, U32));
    let woken = in_child(|| assert_eq!(wake_now(word, 1, u32::MAX, WAKE_SHARED), 1));
    assert_eq!((woken, ring.wait().res), (0, 0));
}

/// A word that children share.
pub(super) fn shared_word() -> &'static AtomicU32 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, which is never unmapped; its words are zero and only used as atomics.
    unsafe {
        let address = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
        assert_ne!(address, libc::MAP_FAILED);
        AtomicU32::from_ptr(address.cast())
    }
}

#[case]
fn shared_in_a_file(cx: &Context) {
    let file = memfd();
    file.set_len(4096).expect("grow");
    let map = || {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: as above.
        unsafe {
            let address = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, fd(&file), 0);
            assert_ne!(address, libc::MAP_FAILED);
            AtomicU32::from_ptr(address.cast())
        }
    };
    let (one, other, mut ring) = (map(), map(), cx.ring(4));
    ring.go(request(Opcode::FutexWait, one, 0, ANY, U32));
    assert_eq!(wake_now(other, 1, u32::MAX, WAKE_SHARED), 1);
    assert_eq!(ring.wait().res, 0);
}

#[case]
fn bad_addresses(cx: &Context) {
    let (word, mut ring, bad) = (AtomicU32::new(0), cx.ring(4), bad_address());
    for flags in [U32 as i32, (U32 | PRIVATE) as i32] {
        let wait = Sqe { fd: flags, ..wait_on(&word, 0) };
        assert_eq!(ring.run(Sqe { addr: bad, ..wait }), -EFAULT);
        assert_eq!(ring.run(Sqe { addr: 0, ..wait }), -EFAULT);
        assert_eq!(ring.run(Sqe { addr: bad, ..wait }.with(IOSQE_ASYNC)), -EFAULT);
        assert_eq!(ring.run(Sqe { addr: wait.addr + 1, ..wait }), -EINVAL);
        assert_eq!(ring.run(Sqe { addr: 1 << 63, ..wait }), -EFAULT);
        assert_eq!(ring.run(Sqe { addr: wait.addr + 2, fd: flags, ..wake(&word, 1) }), -EINVAL);
        assert_eq!(ring.run(Sqe { addr: 1 << 63, fd: flags, ..wake(&word, 1) }), -EFAULT);
    }
    // A wake-up of a private word does not read the word.
    assert_eq!(ring.run(Sqe { addr: bad, ..wake(&word, 1) }), 0);
    assert_eq!(ring.run(Sqe { addr: bad, fd: U32 as i32, ..wake(&word, 1) }), -EFAULT);
    assert_eq!(ring.run(Sqe { addr: wake(&word, 0).addr + 1, ..wake(&word, 0) }), -EINVAL);
}

#[case]
fn unknown_flags_are_einval(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    for flag in [0x10, 0x20, 0x40, 0x100, 1 << 31] {
        let flags = (U32 | PRIVATE | flag) as i32;
        assert_eq!(ring.run(Sqe { fd: flags, ..wait_on(&word, 1) }), -EINVAL, "{flag:#x}");
        assert_eq!(ring.run(Sqe { fd: flags, ..wake(&word, 1) }), -EINVAL, "{flag:#x}");
    }
}

#[case]
fn other_sizes_are_einval(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    for size in [U8, U16, U64] {
        let flags = (size | PRIVATE) as i32;
        assert_eq!(ring.run(Sqe { fd: flags, ..wait_on(&word, 1) }), -EINVAL, "{size}");
        assert_eq!(ring.run(Sqe { fd: flags, ..wake(&word, 1) }), -EINVAL, "{size}");
    }
}

#[case]
fn values_of_more_than_32_bits_are_einval(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    assert_eq!(ring.run(Sqe { off: 1 << 32, ..wait_on(&word, 0) }), -EINVAL);
    assert_eq!(ring.run(Sqe { addr3: 1 << 32, ..wait_on(&word, 0) }), -EINVAL);
    assert_eq!(ring.run(Sqe { off: 1 << 32, ..wake(&word, 0) }), -EINVAL);
    assert_eq!(ring.run(Sqe { addr3: 1 << 32, ..wake(&word, 0) }), -EINVAL);
}

#[case]
fn with_unused_fields_is_einval(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(1), cx.ring(4));
    for good in [wait_on(&word, 0), wake(&word, 1)] {
        assert_eq!(ring.run(Sqe { len: 1, ..good }), -EINVAL);
        assert_eq!(ring.run(good.op_flags(1)), -EINVAL);
        assert_eq!(ring.run(good.buffer(1)), -EINVAL);
        assert_eq!(ring.run(good.file_index(1)), -EINVAL);
        assert_eq!(ring.run(good.ioprio(1)), -EINVAL);
    }
}

/// The word after a futex with FUTEX2_NUMA names its node.
#[case]
fn on_two_nodes(cx: &Context) {
    #[repr(align(8))]
    struct Pair([AtomicU32; 2]);
    let (pair, mut ring) = (Pair([AtomicU32::new(5), AtomicU32::new(0)]), cx.ring(4));
    let flags = U32 | NUMA | PRIVATE;
    ring.go(request(Opcode::FutexWait, &pair.0[0], 5, ANY, flags).data(1));
    let woken = ended(&mut ring, &[request(Opcode::FutexWake, &pair.0[0], 1, ANY, flags).data(2)], 2);
    assert_eq!(woken, [(1, 0), (2, 1)]);
    assert_eq!(ring.run(request(Opcode::FutexWait, &pair.0[0], 6, ANY, flags)), -EAGAIN);
    pair.0[1].store(4096, Ordering::Relaxed); // no such node
    assert_eq!(ring.run(request(Opcode::FutexWait, &pair.0[0], 5, ANY, flags)), -EINVAL);
    let crooked = Sqe { addr: address(&pair.0[1]), ..request(Opcode::FutexWait, &pair.0[0], 5, ANY, flags) };
    assert_eq!(ring.run(crooked), -EINVAL);
}

fn cancelled(cx: &Context, wait: impl Fn(&AtomicU32) -> Sqe) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go(wait(&word).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 1)]);
    assert_eq!(wake_one(&word), 0);
}

#[case]
fn is_cancelled(cx: &Context) {
    cancelled(cx, |word| wait_on(word, 0));
}

#[case]
fn with_bits_is_cancelled(cx: &Context) {
    cancelled(cx, |word| Sqe { addr3: 4, ..wait_on(word, 0) });
}

#[case]
fn cancelled_wait_is_not_woken(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    for _ in 0..20 {
        ring.go_all(&[wait_on(&word, 0).data(1), wait_on(&word, 0).data(2), sqe::cancel(1, 0).data(3)]);
        assert_eq!(wake_one(&word), 1);
        assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, 0), (3, 1)]);
    }
}

#[case]
fn is_cancelled_by_opcode(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go(wait_on(&word, 0).data(1));
    let by_opcode = |opcode: Opcode| Sqe { len: opcode as u32, ..sqe::cancel(0, IORING_ASYNC_CANCEL_OP).data(2) };
    assert_eq!(ring.run(by_opcode(Opcode::FutexWaitv)), -ENOENT);
    ring.go(by_opcode(Opcode::FutexWait));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 1)]);
}

#[case]
fn any_counts_what_it_ends(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(8));
    ring.go_all(&[wait_on(&word, 0).data(1), wait_on(&word, 0).data(2)]);
    ring.go(sqe::cancel(0, IORING_ASYNC_CANCEL_ANY).data(4));
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, -ECANCELED), (4, 2)]);
}

/// A cancel goes through a ring's futex waits once: it ends all that match, and counts them as one.
#[case]
fn all_of_them_count_once(cx: &Context) {
    let ((reader, _writer), word, mut buffer, mut ring) = (pipe(), AtomicU32::new(0), [0; 4], cx.ring(8));
    let waits =
        [wait_on(&word, 0).data(1), wait_on(&word, 0).data(1), sqe::read(fd(&reader), &mut buffer, 0).data(1)];
    ring.go_all(&waits);
    ring.go(sqe::cancel(1, IORING_ASYNC_CANCEL_ALL).data(2));
    assert_eq!(ring.wait_sorted(4), [(1, -ECANCELED), (1, -ECANCELED), (1, -ECANCELED), (2, 2)]);
    assert_eq!(ring.run(sqe::cancel(1, IORING_ASYNC_CANCEL_ALL).data(3)), 0);
}

#[case]
fn sync_cancel_ends_a_wait(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go(wait_on(&word, 0).data(1));
    let mut argument = [0u64; 8]; // struct io_uring_sync_cancel_reg
    argument[0] = 1;
    argument[2..4].fill(u64::MAX); // no timeout
    assert_eq!(ring.register(IORING_REGISTER_SYNC_CANCEL, argument.as_ptr() as usize, 1), 1);
    assert_eq!(ring.wait().res, -ECANCELED);
}

#[case]
fn woken_before_the_cancel(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    for _ in 0..20 {
        ring.go(wait_on(&word, 0).data(1));
        assert_eq!(wake_one(&word), 1);
        ring.go(sqe::cancel(1, 0).data(2));
        let ended = ring.wait_sorted(2);
        assert!(ended[0] == (1, 0) && [-ENOENT, -EALREADY].contains(&ended[1].1), "{ended:?}");
    }
}

#[case]
fn link_timeout_ends_a_wait(cx: &Context) {
    let (word, mut ring, limit) = (AtomicU32::new(0), cx.ring(4), ms(20));
    for wait in [wait_on(&word, 0), Sqe { addr3: 2, ..wait_on(&word, 0) }] {
        ring.go_all(&[wait.data(1).with(IOSQE_IO_LINK), sqe::link_timeout(&limit).data(2)]);
        assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, cx.link_timeout_result())]);
    }
    assert_eq!(wake_one(&word), 0);
}

#[case]
fn wait_goes_on_with_its_link(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go_all(&[wait_on(&word, 0).data(1).with(IOSQE_IO_LINK), sqe::nop().data(2)]);
    ring.expect_quiet();
    assert_eq!(wake_one(&word), 1);
    assert_eq!(ring.wait_sorted(2), [(1, 0), (2, 0)]);
}

#[case]
fn cancelled_wait_goes_on_with_its_link(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go_all(&[wait_on(&word, 0).data(1).with(IOSQE_IO_LINK), sqe::nop().data(2)]);
    ring.go(sqe::cancel(1, 0).data(3));
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, 0), (3, 1)]);
}

#[case]
fn mismatch_breaks_its_link(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go_all(&[wait_on(&word, 1).data(1).with(IOSQE_IO_LINK), sqe::nop().data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -EAGAIN), (2, -ECANCELED)]);
}

#[case]
fn close_ends_waits(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go_all(&[wait_on(&word, 0), Sqe { addr3: 1, ..wait_on(&word, 0) }]);
    assert_eq!(waiters(&word), 2);
    ring.close_fd();
    drop(ring);
    nobody_waits_soon(&word);
}

/// Returns the number of waiters of a word: a requeue to the same word counts them, and leaves them there.
pub(super) fn waiters(word: &AtomicU32) -> i32 {
    let operation = libc::FUTEX_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
    let (address, none, all) = (word.as_ptr(), 0, i32::MAX as usize);
    // SAFETY: the word belongs to this case, and nothing is written.
    unsafe { libc::syscall(libc::SYS_futex, address, operation, none, all, address, 0) as i32 }
}

/// Waits until no request waits on `word`.
pub(super) fn nobody_waits_soon(word: &AtomicU32) {
    let begun = Instant::now();
    while waiters(word) != 0 {
        assert!(begun.elapsed() < crate::ring::PATIENCE, "the waits end with the ring");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[case]
fn wait_of_a_thread_and_of_a_ring(cx: &Context) {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let mut ring = cx.ring(4);
    // Linux 6.18 gives a process a new table of futexes with its first thread, and loses the waiters of the old one.
    std::thread::spawn(|| {}).join().expect("the first thread");
    ring.go(wait_on(&WORD, 0).data(1));
    let sleeper = sleep_on(&WORD);
    assert_eq!(wake_one(&WORD), 1);
    assert_eq!(ring.wait().res, 0); // it came first
    wake_in_time(&WORD, 1);
    assert_eq!(sleeper.join().expect("the thread"), 0);
}

#[case]
fn many_on_one_word(cx: &Context) {
    const COUNT: usize = 300;
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(512));
    for data in 0..COUNT {
        ring.push(wait_on(&word, 0).data(data as u64));
    }
    assert_eq!(ring.submit(), COUNT as isize);
    assert_eq!(wake_now(&word, i32::MAX, u32::MAX, WAKE_PRIVATE), COUNT as i32);
    assert!(ring.wait_sorted(COUNT).into_iter().eq((0..COUNT as u64).map(|data| (data, 0))), "all end with 0");
}

/// One ring waits on more words than there will ever be threads. Each word changes before it is woken, as in every use
/// of futexes.
#[case]
fn many_words(cx: &Context) {
    const COUNT: usize = 3000;
    let words: Vec<AtomicU32> = (0..COUNT).map(|_| AtomicU32::new(0)).collect();
    let mut ring = cx.ring(4096);
    for (data, word) in words.iter().enumerate() {
        ring.push(wait_on(word, 0).data(data as u64));
    }
    assert_eq!(ring.submit(), COUNT as isize);
    for word in &words {
        word.store(1, Ordering::SeqCst);
        wake_one(word);
    }
    assert!(ring.wait_sorted(COUNT).into_iter().eq((0..COUNT as u64).map(|data| (data, 0))), "all end with 0");
}

pub(super) fn words<const N: usize>() -> [AtomicU32; N] {
    [const { AtomicU32::new(0) }; N]
}

#[case]
fn wait_is_moved_by_a_requeue(cx: &Context) {
    let ([from, to], mut ring) = (words::<2>(), cx.ring(4));
    ring.go_all(&[wait_on(&from, 0).data(1), wait_on(&from, 0).data(2)]);
    let operation = libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: both words belong to this case.
    let moved = unsafe { libc::syscall(libc::SYS_futex, from.as_ptr(), operation, 1, 9usize, to.as_ptr(), 0) };
    assert_eq!(moved, 2);
    assert_eq!(ring.wait().user_data, 1);
    assert_eq!(wake_one(&from), 0);
    assert_eq!(wake_one(&to), 1);
    assert_eq!(ring.wait().user_data, 2);
}

#[case]
fn waits_outlive_a_stop(cx: &Context) {
    let (words, mut ring) = (words::<2>(), cx.ring(4));
    ring.go_all(&[wait_on(&words[0], 0), Sqe { addr3: 1, ..wait_on(&words[1], 0) }]);
    stop_for_a_moment();
    ring.expect_quiet();
    wake_in_time(&words[0], 1);
    wake_in_time(&words[1], 1);
    assert_eq!([ring.wait().res, ring.wait().res], [0; 2]);
}

/// Stops and continues this process.
pub(super) fn stop_for_a_moment() {
    let parent = std::process::id() as i32;
    // SAFETY: the child only sends signals, and ends; it is waited for.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::kill(parent, libc::SIGSTOP);
            libc::usleep(20_000); // how long it is stopped
            libc::kill(parent, libc::SIGCONT);
            libc::_exit(0);
        }
        assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
    }
}
