//! A submission in whose middle something happens.

use crate::memory::layout::word;
use crate::os::{Os, Sys};
use crate::process;
use crate::ring::table;
use anyring_abi::{Params, Sqe, IORING_OFF_SQES, IORING_SETUP_NO_SQARRAY, IOSQE_ASYNC};
use core::sync::atomic::Ordering;
use rustix::fd::BorrowedFd;

#[test]
fn a_process_that_joins_between_two_sqes_makes_neither_uncounted() {
    let mut params = Params { flags: IORING_SETUP_NO_SQARRAY, ..Params::default() };
    let fd = crate::setup(8, &raw mut params as u64).expect("a ring");
    let mut guard = table::ring(fd).expect("the ring").lock().expect("the ring");
    let (memfd, at) = guard.mapping(IORING_OFF_SQES.into()).expect("the SQEs");
    // SAFETY: the ring keeps it open.
    let memfd = unsafe { BorrowedFd::borrow_raw(memfd) };
    for (place, flags) in [(0, 0), (1, IOSQE_ASYNC)] {
        let sqe = Sqe { flags, ..Sqe::default() };
        // SAFETY: an SQE is 64 bytes of integers without padding.
        let bytes = unsafe { &*(&raw const sqe).cast::<[u8; 64]>() };
        assert_eq!(rustix::io::pwrite(memfd, bytes, at + 64 * place), Ok(64));
    }
    guard.memory.view.store(word::SQ_TAIL, 2).expect("mapped");
    let mut run = guard.begin_run(8, 2);
    guard.answer_run(&mut run);
    assert_eq!((run.taken, run.left), (1, 1), "the second needs more than a call");
    let control = guard.control;
    control.header().shared.store(1, Ordering::Relaxed);
    assert_eq!(guard.submit_rest(8, Some(run)), Ok(2));
    assert_eq!(guard.memory.view.load(word::SQ_HEAD), Ok(2));
    drop(guard);
    process::closing(fd);
    Sys::close(fd);
}
