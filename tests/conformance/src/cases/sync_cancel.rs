//! IORING_REGISTER_SYNC_CANCEL: a cancellation that returns when its requests have ended.

use super::prelude::*;
use std::time::Instant;

topic!(since: "6.0", source: "io_uring_register_sync_cancel(3), io_uring/cancel.c");

/// `struct io_uring_sync_cancel_reg`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SyncCancel {
    addr: u64,
    fd: i32,
    flags: u32,
    timeout: Timespec,
    opcode: u8,
    pad: [u8; 7],
    pad2: [u64; 3],
}

/// The timeout -1, with which the call waits for as long as it takes.
fn sync(addr: u64, fd: i32, flags: u32) -> SyncCancel {
    let timeout = Timespec { tv_sec: -1, tv_nsec: -1 };
    SyncCancel { addr, fd, flags, timeout, opcode: 0, pad: [0; 7], pad2: [0; 3] }
}

fn sync_cancel(ring: &Ring, argument: SyncCancel) -> i32 {
    ring.register(IORING_REGISTER_SYNC_CANCEL, &raw const argument as usize, 1) as i32
}

/// A ring with requests that wait: reads 10 and 11 on one pipe, poll 12 on another.
struct Pending {
    ring: Ring,
    pipes: [(std::fs::File, std::fs::File); 2],
    _buffers: Box<[[u8; 4]; 2]>,
}

impl Pending {
    fn new(cx: &Context) -> Pending {
        let (mut ring, pipes, mut buffers) = (cx.ring(8), [pipe(), pipe()], Box::<[[u8; 4]; 2]>::default());
        let (first, second) = (fd(&pipes[0].0), fd(&pipes[1].0));
        let [a, b] = buffers.as_mut();
        ring.go_all(&[
            sqe::read(first, a, 0).data(10),
            sqe::read(first, b, 0).data(11),
            sqe::poll_add(second, libc::POLLIN, 0).data(12),
        ]);
        Pending { ring, pipes, _buffers: buffers }
    }

    /// Returns the call's result, and the user data of the requests that it ended.
    fn cancel(&mut self, argument: SyncCancel) -> (i32, Vec<u64>) {
        let answer = sync_cancel(&self.ring, argument);
        let mut ended = Vec::new();
        while let Some(cqe) = self.ring.wait_for(crate::ring::QUIET) {
            assert_eq!(cqe.res, -ECANCELED);
            ended.push(cqe.user_data);
        }
        ended.sort_unstable();
        (answer, ended)
    }
}

#[case]
fn by_user_data(cx: &Context) {
    assert_eq!(Pending::new(cx).cancel(sync(10, -1, 0)), (0, vec![10]));
}

#[case]
fn of_nothing_is_enoent(cx: &Context) {
    assert_eq!(Pending::new(cx).cancel(sync(99, -1, 0)), (-ENOENT, vec![]));
}

#[case]
fn of_all_of_nothing_is_zero(cx: &Context) {
    assert_eq!(Pending::new(cx).cancel(sync(99, -1, IORING_ASYNC_CANCEL_ALL)), (0, vec![]));
}

#[case]
fn ends_one_of_several(cx: &Context) {
    let mut pending = Pending::new(cx);
    let argument = sync(0, fd(&pending.pipes[0].0), IORING_ASYNC_CANCEL_FD);
    let (answer, ended) = pending.cancel(argument);
    assert_eq!((answer, ended.len()), (0, 1));
}

#[case]
fn by_descriptor_counts_with_all(cx: &Context) {
    let mut pending = Pending::new(cx);
    let argument = sync(0, fd(&pending.pipes[0].0), IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ALL);
    assert_eq!(pending.cancel(argument), (2, vec![10, 11]));
}

#[case(since = "6.6")]
fn by_descriptor_and_user_data(cx: &Context) {
    let mut pending = Pending::new(cx);
    let flags = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_USERDATA;
    let argument = sync(11, fd(&pending.pipes[0].0), flags);
    assert_eq!(pending.cancel(argument), (0, vec![11]));
}

#[case]
fn by_fixed_descriptor(cx: &Context) {
    let mut pending = Pending::new(cx);
    pending.ring.register_files(&[fd(&pending.pipes[1].0)]);
    let flags = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_FD_FIXED;
    assert_eq!(pending.cancel(sync(0, 0, flags)), (0, vec![12]));
}

#[case(since = "6.6")]
fn by_opcode(cx: &Context) {
    let flags = IORING_ASYNC_CANCEL_OP | IORING_ASYNC_CANCEL_ALL;
    let argument = SyncCancel { opcode: Opcode::Read as u8, ..sync(0, -1, flags) };
    assert_eq!(Pending::new(cx).cancel(argument), (2, vec![10, 11]));
}

#[case]
fn any_ends_everything(cx: &Context) {
    assert_eq!(Pending::new(cx).cancel(sync(0, -1, IORING_ASYNC_CANCEL_ANY)), (3, vec![10, 11, 12]));
}

#[case(since = "6.6")]
fn any_looks_at_no_other_key(cx: &Context) {
    let mut pending = Pending::new(cx);
    let keys = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_OP | IORING_ASYNC_CANCEL_USERDATA;
    let argument = sync(99, fd(&pending.pipes[0].0), IORING_ASYNC_CANCEL_ANY | keys);
    assert_eq!(pending.cancel(argument), (3, vec![10, 11, 12]));
}

#[case]
fn of_a_timeout(cx: &Context) {
    let (mut ring, long) = (cx.ring(4), ms(10_000));
    ring.go(sqe::timeout(&long, 0, 0).data(7));
    assert_eq!(sync_cancel(&ring, sync(7, -1, 0)), 0);
    assert_eq!(ring.wait_ordered(1), [(7, -ECANCELED)]);
}

#[case]
fn of_a_bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(Pending::new(cx).cancel(sync(0, 9999, IORING_ASYNC_CANCEL_FD)), (-EBADF, vec![]));
}

#[case]
fn of_a_slot_that_is_not_is_ebadf(cx: &Context) {
    let flags = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_FD_FIXED;
    assert_eq!(Pending::new(cx).cancel(sync(0, 3, flags)), (-EBADF, vec![]));
}

#[case]
fn unknown_flag_is_einval(cx: &Context) {
    assert_eq!(Pending::new(cx).cancel(sync(10, -1, 1 << 10)), (-EINVAL, vec![]));
}

#[case]
fn reserved_is_einval(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(sync_cancel(&ring, SyncCancel { pad2: [1, 0, 0], ..sync(1, -1, 0) }), -EINVAL);
    assert_eq!(sync_cancel(&ring, SyncCancel { pad: [1; 7], ..sync(1, -1, 0) }), -EINVAL);
    assert_eq!(ring.register(IORING_REGISTER_SYNC_CANCEL, 0, 1) as i32, -EINVAL);
    assert_eq!(ring.register(IORING_REGISTER_SYNC_CANCEL, &raw const ring as usize, 2) as i32, -EINVAL);
}

#[case]
fn bad_address_is_efault(cx: &Context) {
    assert_eq!(cx.ring(4).register(IORING_REGISTER_SYNC_CANCEL, bad_address() as usize, 1) as i32, -EFAULT);
}

#[case]
fn needs_no_timeout(cx: &Context) {
    let argument = SyncCancel { timeout: Timespec::default(), ..sync(10, -1, 0) };
    assert_eq!(Pending::new(cx).cancel(argument), (0, vec![10]));
}

/// The result is 0 if a worker that sleeps in the call was interrupted in time, else ETIME. Here the call is an
/// open of a FIFO.
#[case]
fn of_what_a_worker_sleeps_in(cx: &Context) {
    ends_in_time(cx, ms(50));
}

#[case]
fn time_before_now_is_over(cx: &Context) {
    for (tv_sec, tv_nsec) in [(-5, 0), (-1, 0), (0, -1), (i64::MIN, 0)] {
        ends_in_time(cx, Timespec { tv_sec, tv_nsec });
    }
}

/// A cancellation of an open that sleeps on a worker: it is interrupted, or the time is over.
fn ends_in_time(cx: &Context, timeout: Timespec) {
    // SAFETY: a constant name.
    unsafe { libc::mkfifo(c"fifo".as_ptr(), 0o600) };
    let mut ring = cx.ring(4);
    ring.go(sqe::openat(libc::AT_FDCWD, c"fifo", libc::O_RDONLY, 0).with(IOSQE_ASYNC).data(1));
    ring.expect_quiet();
    wait_others_asleep(&[]); // a worker sleeps in it
    let start = Instant::now();
    let answer = sync_cancel(&ring, SyncCancel { timeout, ..sync(1, -1, 0) });
    assert!(start.elapsed() < crate::ring::PATIENCE, "{answer} after {:?}", start.elapsed());
    let _writer = std::fs::File::options().read(true).write(true).open("fifo").expect("open the FIFO");
    let result = ring.wait().res;
    // On the kernel the worker that the first attempt interrupted may be gone by the second attempt. That attempt then
    // fails with ENOENT, and the request with its own ERESTARTSYS.
    let gone = answer == -ENOENT && result == -512;
    assert!(answer == -ETIME || (answer == 0 && result < 0) || gone, "{answer} with the CQE {result}");
}
