//! Tests of events in the middle of a submission.

use crate::memory::layout::word;
use crate::memory::Area;
use crate::os::{user_write, Os, Sys};
use crate::process;
use crate::ring::table;
use crate::Enter;
use anyring_abi::{
    Opcode, Params, Sqe, IORING_ENTER_GETEVENTS, IORING_OFF_SQES, IORING_REGISTER_FILES, IORING_SETUP_NO_SQARRAY,
    IOSQE_ASYNC, IOSQE_FIXED_FILE,
};
use core::sync::atomic::Ordering;
use std::os::fd::AsRawFd;

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

/// Bytes of each read below.
const MIB: usize = 1 << 20;

/// Submits these reads on a new ring, whose registered file 0 is `file`. Returns the number that went to workers, after
/// all have completed.
fn left_to_workers(file: i32, reads: &[Sqe]) -> usize {
    let mut params = Params { flags: IORING_SETUP_NO_SQARRAY, ..Params::default() };
    let fd = crate::setup(8, &raw mut params as u64).expect("a ring");
    assert_eq!(crate::register(fd as u32, IORING_REGISTER_FILES, &raw const file as u64, 1), Ok(0));
    let ring = table::ring(fd).expect("the ring");
    let mut guard = ring.lock().expect("the ring");
    let Some(Area::Memory(sqes)) = guard.mapping(IORING_OFF_SQES.into()) else { panic!("no SQEs") };
    for (place, read) in reads.iter().enumerate() {
        user_write((sqes + 64 * place) as u64, read).expect("mapped");
    }
    let count = reads.len() as u32;
    guard.memory.view.store(word::SQ_TAIL, count).expect("mapped");
    assert_eq!(guard.submit(count), Ok(count));
    let left = guard.slab.len();
    drop(guard);
    let wait = Enter {
        fd: fd as u32,
        min_complete: count,
        flags: IORING_ENTER_GETEVENTS,
        to_submit: 0,
        arg: 0,
        arg_size: 0,
    };
    assert_eq!(crate::enter(&wait), Ok(0));
    let guard = ring.lock().expect("the ring");
    assert_eq!(guard.memory.view.load(word::CQ_TAIL), Ok(count));
    drop(guard);
    process::closing(fd);
    Sys::close(fd);
    left
}

#[test]
fn one_of_two_large_reads_goes_to_a_worker() {
    if crate::os::usable_cpus() < 2 {
        return println!("skipped: there is one CPU only");
    }
    let path = std::env::temp_dir().join(format!("anyring-large-{}", std::process::id()));
    std::fs::write(&path, vec![7; 2 * MIB]).expect("a file");
    let file = std::fs::File::open(&path).expect("the file");
    std::fs::remove_file(&path).expect("the file");
    let mut buffers = vec![0u8; 2 * MIB];
    let iovec = libc::iovec { iov_base: buffers.as_mut_ptr().cast(), iov_len: 1 };
    let args = [file.as_raw_fd() as usize, &raw const iovec as usize, 1, 0, 0, libc::RWF_NOWAIT as usize];
    if crate::os::syscall(libc::SYS_preadv2, args) != 1 {
        return println!("skipped: the file system of {} does not support RWF_NOWAIT", path.display());
    }
    let address = buffers.as_mut_ptr() as u64;
    let read = |place: usize, off: u64| Sqe {
        opcode: Opcode::Read as u8,
        flags: IOSQE_FIXED_FILE,
        fd: 0,
        addr: address + (place * MIB) as u64,
        len: MIB as u32,
        off,
        ..Sqe::default()
    };
    let nop = Sqe::default();
    let left_to_workers = |reads: [Sqe; 2]| left_to_workers(file.as_raw_fd(), &reads);
    assert_eq!(left_to_workers([read(0, 0), read(1, MIB as u64)]), 1);
    let by_number = |sqe: Sqe| Sqe { flags: 0, fd: file.as_raw_fd(), ..sqe };
    let unseen = [by_number(read(0, 0)), by_number(read(1, MIB as u64))];
    assert_eq!(left_to_workers(unseen), 0, "this program may close the number unseen");
    assert_eq!(left_to_workers([read(0, 0), nop]), 0, "this thread would have nothing to copy meanwhile");
    assert_eq!(left_to_workers([read(0, u64::MAX), read(1, u64::MAX)]), 0, "the file's position orders them");
    assert_eq!(std::hint::black_box(&buffers).iter().position(|byte| *byte != 7), None);
}
