//! Tests of events in the middle of a submission.

use crate::memory::layout::word;
use crate::memory::Area;
use crate::os::{user_write, Os, Sys};
use crate::process;
use crate::ring::table;
use anyring_abi::{Params, Sqe, IORING_OFF_SQES, IORING_SETUP_NO_SQARRAY, IOSQE_ASYNC};
use core::sync::atomic::Ordering;

#[test]
fn a_process_that_joins_between_two_sqes_makes_neither_uncounted() {
    let mut params = Params { flags: IORING_SETUP_NO_SQARRAY, ..Params::default() };
    let fd = crate::setup(8, &raw mut params as u64).expect("a ring");
    let mut guard = table::ring(fd).expect("the ring").lock().expect("the ring");
    let Some(Area::Memory(sqes)) = guard.mapping(IORING_OFF_SQES.into()) else { panic!("no SQEs") };
    for (place, flags) in [(0, 0), (1, IOSQE_ASYNC)] {
        user_write((sqes + 64 * place) as u64, &Sqe { flags, ..Sqe::default() }).expect("mapped");
    }
    guard.memory.view.store(word::SQ_TAIL, 2).expect("mapped");
    let mut run = guard.begin_run(8, 2);
    guard.complete_run(&mut run);
    assert_eq!((run.submitted, run.left), (1, 1), "the second needs more than a call");
    let control = guard.control;
    control.header().shared.store(1, Ordering::Relaxed);
    assert_eq!(guard.submit_rest(8, Some(run)), Ok(2));
    assert_eq!(guard.memory.view.load(word::SQ_HEAD), Ok(2));
    drop(guard);
    process::closing(fd);
    Sys::close(fd);
}
