//! FUTEX_WAITV: several futexes waited for by one request.

use super::futex::{
    nobody_waits_soon, shared_word, stop_for_a_moment, waiters, wake_in_time, wake_now, wake_one, words, PRIVATE,
    U32, U64, WAKE_PRIVATE, WAKE_SHARED,
};
use super::prelude::*;
use std::sync::atomic::AtomicU32;

topic!(since: "6.7", source: "io_uring_enter(2), io_uring/futex.c");

/// `struct futex_waitv`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

fn entry(word: &AtomicU32, value: u64) -> Entry {
    Entry { value, address: address(word), flags: U32 | PRIVATE, reserved: 0 }
}

fn vector(entries: &[Entry]) -> Sqe {
    prep(Opcode::FutexWaitv, 0, address(entries), entries.len() as u32, 0)
}

#[case]
fn tells_which(cx: &Context) {
    let (words, mut ring) = (words::<3>(), cx.ring(4));
    let entries: Vec<_> = words.iter().map(|word| entry(word, 0)).collect();
    for which in [0, 2, 1] {
        ring.go(vector(&entries));
        assert_eq!(wake_one(&words[which]), 1);
        assert_eq!(ring.wait().res, which as i32);
        assert_eq!(words.each_ref().map(wake_one), [0; 3]);
    }
}

#[case]
fn of_one(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(3), cx.ring(4));
    let mut entries = [entry(&word, 3)];
    ring.go(vector(&entries));
    entries[0].address = 0; // it has been read
    ring.expect_quiet();
    assert_eq!(std::hint::black_box(&entries)[0].address, 0);
    assert_eq!(wake_one(&word), 1);
    assert_eq!(ring.wait().res, 0);
}

#[case]
fn on_another_value_is_eagain(cx: &Context) {
    let (words, mut ring) = (words::<2>(), cx.ring(4));
    assert_eq!(ring.run(vector(&[entry(&words[0], 0), entry(&words[1], 1)])), -EAGAIN);
    assert_eq!(wake_one(&words[0]), 0);
}

#[case]
fn with_async(cx: &Context) {
    let (words, mut ring) = (words::<2>(), cx.ring(4));
    let entries = [entry(&words[0], 0), entry(&words[1], 0)];
    ring.go(vector(&entries).with(IOSQE_ASYNC));
    wake_in_time(&words[1], 1);
    assert_eq!(ring.wait().res, 1);
    assert_eq!(ring.run(vector(&[entry(&words[0], 1)]).with(IOSQE_ASYNC)), -EAGAIN);
}

#[case]
fn of_private_and_shared(cx: &Context) {
    let (word, shared, mut ring) = (AtomicU32::new(0), shared_word(), cx.ring(4));
    let entries = [entry(&word, 0), Entry { flags: U32, ..entry(shared, 0) }];
    ring.go(vector(&entries));
    assert_eq!(wake_now(shared, 1, u32::MAX, WAKE_PRIVATE), 0);
    assert_eq!(wake_now(shared, 1, u32::MAX, WAKE_SHARED), 1);
    assert_eq!(ring.wait().res, 1);
}

#[case]
fn with_the_same_word_twice(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go(vector(&[entry(&word, 0), entry(&word, 0)]));
    assert_eq!(wake_one(&word), 1);
    assert_eq!(ring.wait().res, 0);
    ring.go(vector(&[entry(&word, 0), entry(&word, 0)]));
    assert_eq!(wake_now(&word, 9, u32::MAX, WAKE_PRIVATE), 2);
    assert_eq!(ring.wait().res, i32::from(cx.answers_since("7.3")), "before 7.3 the first to be woken");
}

#[case]
fn of_nothing_or_too_many_is_einval(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    assert_eq!(ring.run(vector(&[])), -EINVAL);
    assert_eq!(ring.run(vector(&[entry(&word, 1); 129])), -EINVAL);
    assert_eq!(ring.run(Sqe { addr: 0, ..vector(&[entry(&word, 1)]) }), -EFAULT);
}

fn long_vector<const N: usize>(cx: &Context) {
    let (words, mut ring) = (words::<N>(), cx.ring(4));
    let entries: Vec<_> = words.iter().map(|word| entry(word, 0)).collect();
    for which in [0, N / 2, N - 1] {
        ring.go(vector(&entries));
        assert_eq!(wake_one(&words[which]), 1);
        assert_eq!(ring.wait().res, which as i32);
        assert_eq!(words.iter().map(wake_one).sum::<i32>(), 0);
    }
    ring.go(vector(&entries).data(1));
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 1)]);
    assert_eq!(words.iter().map(wake_one).sum::<i32>(), 0);
}

#[case]
fn of_127(cx: &Context) {
    long_vector::<127>(cx);
}

#[case]
fn of_128(cx: &Context) {
    long_vector::<128>(cx);
}

#[case]
fn with_bad_entries(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    let good = entry(&word, 0);
    let mut answer = |bad: Entry| ring.run(vector(&[good, bad]));
    assert_eq!(answer(Entry { reserved: 1, ..good }), -EINVAL);
    assert_eq!(answer(Entry { flags: U64 | PRIVATE, ..good }), -EINVAL);
    assert_eq!(answer(Entry { flags: U32 | 0x100, ..good }), -EINVAL);
    assert_eq!(answer(Entry { value: 1 << 32, ..good }), -EINVAL);
    assert_eq!(answer(Entry { address: good.address + 1, ..good }), -EINVAL);
    assert_eq!(answer(Entry { address: bad_address(), ..good }), -EFAULT);
    assert_eq!(answer(Entry { address: bad_address(), flags: U32, ..good }), -EFAULT);
    assert_eq!(answer(Entry { address: 0, ..good }), -EFAULT);
    assert_eq!(wake_one(&word), 0);
}

#[case]
fn at_a_bad_address_is_efault(cx: &Context) {
    let word = AtomicU32::new(0);
    assert_eq!(cx.ring(4).run(Sqe { addr: bad_address(), ..vector(&[entry(&word, 0)]) }), -EFAULT);
}

#[case]
fn with_unused_fields_is_einval(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    let entries = [entry(&word, 1)];
    let good = vector(&entries);
    assert_eq!(ring.run(Sqe { fd: 2, ..good }), -EINVAL);
    assert_eq!(ring.run(Sqe { off: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(Sqe { addr3: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(good.op_flags(1)), -EINVAL);
    assert_eq!(ring.run(good.buffer(1)), -EINVAL);
    assert_eq!(ring.run(good.file_index(1)), -EINVAL);
}

#[case]
fn is_cancelled(cx: &Context) {
    let (words, mut ring) = (words::<2>(), cx.ring(4));
    ring.go(vector(&[entry(&words[0], 0), entry(&words[1], 0)]).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 1)]);
    assert_eq!(words.each_ref().map(wake_one), [0; 2]);
}

/// A wait by vector has no bits of its own: any wake matches it.
#[case]
fn of_bits_knows_none(cx: &Context) {
    let (word, mut ring) = (AtomicU32::new(0), cx.ring(4));
    ring.go(vector(&[entry(&word, 0)]));
    assert_eq!(wake_now(&word, 1, 0x40, WAKE_PRIVATE), 1);
    assert_eq!(ring.wait().res, 0);
}

#[case]
fn is_cancelled_among_others(cx: &Context) {
    let ((reader, _writer), word, mut ring) = (pipe(), AtomicU32::new(0), cx.ring(8));
    let poll = sqe::poll_add(fd(&reader), libc::POLLIN, 0);
    ring.go_all(&[vector(&[entry(&word, 0)]).data(1), poll.data(2), vector(&[entry(&word, 0)]).data(3)]);
    ring.go(sqe::cancel(0, IORING_ASYNC_CANCEL_ANY).data(4));
    assert_eq!(ring.wait_sorted(4), [(1, -ECANCELED), (2, -ECANCELED), (3, -ECANCELED), (4, 3)]);
}

#[case]
fn link_timeout_ends_it(cx: &Context) {
    let (word, mut ring, limit) = (AtomicU32::new(0), cx.ring(4), ms(20));
    let entries = [entry(&word, 0)];
    ring.go_all(&[vector(&entries).data(1).with(IOSQE_IO_LINK), sqe::link_timeout(&limit).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, cx.link_timeout_result())]);
    assert_eq!(wake_one(&word), 0);
}

#[case]
fn close_ends_it(cx: &Context) {
    let (words, mut ring) = (words::<2>(), cx.ring(4));
    ring.go(vector(&[entry(&words[0], 0), entry(&words[1], 0)]));
    assert_eq!(words.each_ref().map(waiters), [1; 2]);
    ring.close_fd();
    drop(ring);
    words.iter().for_each(nobody_waits_soon);
}

#[case]
fn outlives_a_stop(cx: &Context) {
    let (words, mut ring) = (words::<2>(), cx.ring(4));
    ring.go(vector(&[entry(&words[0], 0), entry(&words[1], 0)]));
    stop_for_a_moment();
    ring.expect_quiet();
    wake_in_time(&words[1], 1);
    assert_eq!(ring.wait().res, 1);
}
