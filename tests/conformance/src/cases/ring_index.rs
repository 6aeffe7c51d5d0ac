//! Rings by their registered index. Only a thread with an io_uring context can name one.

use super::prelude::*;
use crate::door::Door;

topic!(since: "5.18", source: "io_uring_enter(2), io_uring_register(2), io_uring/tctx.c");

const BY_INDEX: u32 = IORING_REGISTER_USE_REGISTERED_RING;

/// Enters the ring at an index.
fn enter(door: Door, index: i32) -> i32 {
    door.enter(index, 0, 0, IORING_ENTER_REGISTERED_RING, 0, 0) as i32
}

/// Returns what a new thread finds at the free index 0, after `act`.
fn after(cx: &Context, act: impl FnOnce() + Send) -> i32 {
    let door = cx.door;
    in_thread(move || {
        assert_eq!(enter(door, 0), -EINVAL, "before");
        act();
        let answer = enter(door, 0);
        assert_eq!(enter(door, 16), -EINVAL, "there is no such index");
        assert_eq!(door.register(0, IORING_REGISTER_PROBE | BY_INDEX, 0, 0) as i32, answer);
        answer
    })
}

fn in_thread<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(act).join()).expect("the thread ends")
}

/// Registers or unregisters one ring with `slot`.
fn number(ring: &Ring, opcode: u32, slot: &mut [u64; 2], count: u32) -> i32 {
    ring.register(opcode, address_mut(slot) as usize, count) as i32
}

#[case(own_flags, since = "6.3")]
fn a_thread_that_did_nothing_is_einval(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    assert_eq!(enter(cx.door, 0), -EBADF, "the maker of a ring");
    let nothing = || {
        assert_eq!(ring.enter(0, 0, 0, 0, 0), 0);
        assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
        let mut limits = [0u32; 2];
        assert_eq!(ring.register(IORING_REGISTER_IOWQ_MAX_WORKERS, address_mut(&mut limits) as usize, 2), 0);
    };
    assert_eq!(after(cx, nothing), -EINVAL);
}

#[case(own_flags, since = "6.3")]
fn a_thread_that_submitted_is_ebadf(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    assert_eq!(after(cx, || assert_eq!(ring.enter(1, 0, 0, 0, 0), 0)), -EBADF);
}

#[case(own_flags, since = "6.3")]
fn a_thread_that_enters_a_polled_ring_is_einval(cx: &Context) {
    let ring = cx.ring_with(4, IORING_SETUP_SQPOLL);
    assert_eq!(after(cx, || assert_eq!(ring.enter(1, 0, 0, 0, 0), 1)), -EINVAL);
}

#[case(own_flags, since = "6.3")]
fn a_thread_that_made_a_ring_is_ebadf(cx: &Context) {
    assert_eq!(after(cx, || drop(cx.ring_with(4, 0))), -EBADF);
    let mut unknown = Params { flags: u32::MAX, ..Params::default() };
    assert_eq!(after(cx, || assert!(cx.door.setup(4, &raw mut unknown as usize) < 0)), -EINVAL);
}

#[case(own_flags, since = "6.3")]
fn a_registration_that_fails_makes_a_context(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    let count = |count: u32, answer: i32| {
        let ring = &ring;
        move || assert_eq!(ring.register(IORING_REGISTER_RING_FDS, 0, count) as i32, answer)
    };
    assert_eq!(after(cx, count(0, -EINVAL)), -EINVAL);
    assert_eq!(after(cx, count(17, -EINVAL)), -EINVAL);
    assert_eq!(after(cx, count(1, -EFAULT)), -EBADF);
}

#[case(own_flags)]
fn unregistering_in_a_thread_that_did_nothing_is_zero(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    in_thread(|| {
        let mut slot = [0, 0];
        assert_eq!(number(&ring, IORING_UNREGISTER_RING_FDS, &mut slot, 1), 0);
        assert_eq!(ring.register(IORING_UNREGISTER_RING_FDS, 0, 1), 0, "the array is not read");
        assert_eq!(number(&ring, IORING_UNREGISTER_RING_FDS, &mut slot, 17), -EINVAL);
        assert_eq!(ring.enter(1, 0, 0, 0, 0), 0);
        assert_eq!(number(&ring, IORING_UNREGISTER_RING_FDS, &mut slot, 1), 1);
        assert_eq!(ring.register(IORING_UNREGISTER_RING_FDS, 0, 1) as i32, -EFAULT);
    });
}

#[case(own_flags)]
fn the_indices_are_the_threads_own(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    let mut slot = [3, ring.fd as u64];
    assert_eq!(number(&ring, IORING_REGISTER_RING_FDS, &mut slot, 1), 1);
    let other = in_thread(|| {
        assert_eq!(ring.enter(1, 0, 0, 0, 0), 0);
        enter(cx.door, 3)
    });
    assert_eq!((enter(cx.door, 3), other), (0, -EBADF));
}

#[case(own_flags, since = "6.3")]
fn an_unknown_call_is_einval_before_its_ring_is_looked_up(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    assert_eq!(cx.door.register(0, 1000 | BY_INDEX, 0, 0) as i32, -EINVAL);
    assert_eq!(cx.door.register(0, IORING_REGISTER_PROBE | BY_INDEX, 0, 0) as i32, -EBADF);
    assert_eq!(cx.door.register(99, 1000, 0, 0) as i32, -EINVAL);
    assert_eq!(cx.door.register(99, IORING_REGISTER_PROBE, 0, 0) as i32, -EBADF);
    drop(ring);
}

#[case(own_flags, since = "6.0")]
fn an_unknown_call_is_einval_in_any_thread(cx: &Context) {
    let ring = cx.ring_with(4, IORING_SETUP_SINGLE_ISSUER);
    in_thread(|| assert_eq!(ring.register(1000, 0, 0) as i32, -EINVAL));
}

#[case(own_flags, since = "6.12")]
fn cloning_from_an_index_needs_a_context(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    let mut source = [u64::from(IORING_REGISTER_SRC_REGISTERED) << 32, 0, 0, 0];
    let mut clone = || ring.register(IORING_REGISTER_CLONE_BUFFERS, address_mut(&mut source) as usize, 1) as i32;
    assert_eq!(clone(), -EBADF);
    assert_eq!(in_thread(clone), -EINVAL);
}

#[case(own_flags, since = "6.3")]
fn a_forked_child_has_no_context(cx: &Context) {
    let _ring = cx.ring_with(4, 0);
    assert_eq!(enter(cx.door, 0), -EBADF);
    assert_eq!(in_child(|| assert_eq!(enter(cx.door, 0), -EINVAL)), 0);
}
