//! The costs of the engine's parts, called directly instead of through a library or a system call: `make bench`.
//!
//! Each part is measured through the engine's own calls:
//!
//! - intake: a NOP is copied, checked and completed
//! - posting to another ring
//! - the overflow backlog
//! - routing: a request that has to wait, and its readiness
//! - timers

use anyring_abi::{
    Cqe, Opcode, Params, Sqe, Timespec, IORING_ENTER_GETEVENTS, IORING_SETUP_CQSIZE, IORING_SETUP_NO_MMAP,
};
use anyring_engine::{enter, setup, Enter};
use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use std::alloc::{alloc_zeroed, Layout};
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes for a ring of a few hundred entries.
const AREA: usize = 1 << 18;

/// A ring in the benchmark's own memory (IORING_SETUP_NO_MMAP), kept until the process ends.
struct Ring {
    fd: u32,
    area: *mut u8,
    sqes: *mut Sqe,
    params: Params,
    tail: u32,
}

fn memory() -> *mut u8 {
    let layout = Layout::from_size_align(AREA, 4096).expect("a constant that is right");
    // SAFETY: the size is not zero.
    let address = unsafe { alloc_zeroed(layout) };
    assert!(!address.is_null());
    address
}

impl Ring {
    fn new(sq_entries: u32, cq_entries: u32) -> Self {
        // As in a served program. No address here is bad, so there is nothing to handle.
        anyring_engine::os::handler_installed();
        let (area, sqes) = (memory(), memory());
        let mut params =
            Params { flags: IORING_SETUP_NO_MMAP | IORING_SETUP_CQSIZE, cq_entries, ..Params::default() };
        (params.cq_off.user_addr, params.sq_off.user_addr) = (area as u64, sqes as u64);
        let fd = setup(sq_entries, std::ptr::from_mut(&mut params) as u64).expect("setup") as u32;
        let ring = Ring { fd, area, sqes: sqes.cast(), params, tail: 0 };
        for index in 0..sq_entries {
            ring.word(ring.params.sq_off.array + 4 * index).store(index, Ordering::Relaxed);
        }
        ring
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        assert!(offset as usize + 4 <= AREA);
        // SAFETY: inside the area, aligned as the engine laid it out, and only used as an atomic.
        unsafe { &*self.area.add(offset as usize).cast::<AtomicU32>() }
    }

    fn push(&mut self, sqe: Sqe) {
        let index = self.tail & (self.params.sq_entries - 1);
        // SAFETY: masked, so inside the array; the engine reads it in `submit` only.
        unsafe { self.sqes.add(index as usize).write(sqe) };
        self.tail = self.tail.wrapping_add(1);
    }

    /// Submits the pushed SQEs and waits for `wait` completions.
    fn submit(&mut self, wait: u32) {
        let tail = self.word(self.params.sq_off.tail);
        let to_submit = self.tail.wrapping_sub(tail.load(Ordering::Relaxed));
        tail.store(self.tail, Ordering::Release); // partner: the engine's Acquire load of the tail
        let flags = if wait > 0 { IORING_ENTER_GETEVENTS } else { 0 };
        let call = Enter { fd: self.fd, to_submit, min_complete: wait, flags, arg: 0, arg_size: 0 };
        assert_eq!(enter(&call), Ok(to_submit));
    }

    /// Reaps `count` CQEs, which must be there and have this result.
    fn reap(&mut self, count: u32, result: i32) {
        self.reap_any(count, &[result]);
    }

    /// Reaps `count` CQEs, which must be there and have one of these results each.
    fn reap_any(&mut self, count: u32, results: &[i32]) {
        let head = self.word(self.params.cq_off.head);
        let first = head.load(Ordering::Relaxed);
        // Acquire: pairs with the engine's Release store of the tail.
        let there = self.word(self.params.cq_off.tail).load(Ordering::Acquire).wrapping_sub(first);
        assert!(there >= count, "{there} of {count} CQEs");
        for index in 0..count {
            let place = first.wrapping_add(index) & (self.params.cq_entries - 1);
            let offset = self.params.cq_off.cqes as usize + place as usize * size_of::<Cqe>();
            // SAFETY: masked, so inside the area; posted, and not yet given back.
            let cqe = unsafe { self.area.add(offset).cast::<Cqe>().read() };
            assert!(results.contains(&cqe.res), "{cqe:?}");
        }
        head.store(first.wrapping_add(count), Ordering::Release); // partner: the engine's Acquire load of the head
    }
}

fn sqe(opcode: Opcode, fd: i32) -> Sqe {
    Sqe { opcode: opcode as u8, fd, ..Sqe::default() }
}

fn intake(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("intake");
    let mut ring = Ring::new(64, 128);
    for batch in [1, 32] {
        group.throughput(Throughput::Elements(u64::from(batch)));
        group.bench_function(BenchmarkId::new("NOP", batch), |bencher| {
            bencher.iter(|| {
                (0..batch).for_each(|_| ring.push(sqe(Opcode::Nop, -1)));
                ring.submit(0);
                ring.reap(batch, 0);
            });
        });
    }
}

fn post(criterion: &mut Criterion) {
    let (mut sender, mut receiver) = (Ring::new(64, 128), Ring::new(64, 128));
    let mut group = criterion.benchmark_group("post");
    for batch in [1, 32] {
        group.throughput(Throughput::Elements(u64::from(batch)));
        group.bench_function(BenchmarkId::new("MSG_RING", batch), |bencher| {
            bencher.iter(|| {
                (0..batch).for_each(|_| sender.push(Sqe { len: 5, ..sqe(Opcode::MsgRing, receiver.fd as i32) }));
                sender.submit(0);
                sender.reap(batch, 0);
                receiver.reap(batch, 5);
            });
        });
    }
}

/// 32 completions for a CQ of 8: 24 of them wait in the backlog until there is room.
fn overflow(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("overflow");
    group.throughput(Throughput::Elements(32));
    let mut ring = Ring::new(8, 8);
    group.bench_function("NOP, CQ of 8", |bencher| {
        bencher.iter(|| {
            for _ in 0..4 {
                (0..8).for_each(|_| ring.push(sqe(Opcode::Nop, -1)));
                ring.submit(0);
            }
            for round in 0..4 {
                if round > 0 {
                    ring.submit(1); // the backlog moves into the CQ
                }
                ring.reap(8, 0);
            }
        });
    });
}

/// A read of an empty pipe, a write to it, and both completions.
fn route(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("route");
    let mut ring = Ring::new(64, 128);
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    let (mut from, mut to) = ([7u8; 16], [0u8; 16]);
    let transfer = |opcode, fd, memory: &mut [u8; 16]| Sqe {
        addr: memory.as_mut_ptr() as u64,
        len: 16,
        off: u64::MAX,
        ..sqe(opcode, fd)
    };
    group.bench_function("READ that waits, WRITE", |bencher| {
        bencher.iter(|| {
            ring.push(transfer(Opcode::Read, ends[0], &mut to));
            ring.push(transfer(Opcode::Write, ends[1], &mut from));
            ring.submit(2);
            ring.reap(2, 16);
        });
    });
}

/// Arms and removes one timeout among others.
fn timer(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("timer");
    let far = Timespec { tv_sec: 3600, tv_nsec: 0 };
    let timeout = |user_data| Sqe { addr: (&raw const far) as u64, len: 1, user_data, ..sqe(Opcode::Timeout, -1) };
    for others in [0, 1_000, 10_000] {
        let mut ring = Ring::new(64, 128);
        for user_data in 1..=others {
            ring.push(timeout(user_data));
            ring.submit(0);
        }
        group.bench_function(BenchmarkId::new("arm and remove among", others), |bencher| {
            bencher.iter(|| {
                ring.push(timeout(u64::MAX));
                ring.push(Sqe { addr: u64::MAX, ..sqe(Opcode::TimeoutRemove, -1) });
                ring.submit(2);
                ring.reap_any(2, &[0, -libc::ECANCELED]);
            });
        });
    }
}

criterion_group!(benches, intake, post, overflow, route, timer);
criterion_main!(benches);
