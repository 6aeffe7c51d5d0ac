//! Steps on rings.

use super::{call, get, poke, poke_u32, resolve};
use crate::arena::{self, Area};
use crate::child::HANDLER_ENTERS;
use crate::program::*;
use anyring_abi::*;
use libc::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// The known state of a ring. Other threads read it, and may get words of two different states. That does no harm: a
/// hostile program may name anything.
struct Ring {
    fd: AtomicI32,
    flags: AtomicU32,
    sq_entries: AtomicU32,
    array: AtomicU32,
}

static KNOWN: [Ring; RINGS as usize] = [const {
    Ring {
        fd: AtomicI32::new(-1),
        flags: AtomicU32::new(0),
        sq_entries: AtomicU32::new(0),
        array: AtomicU32::new(0),
    }
}; RINGS as usize];

/// The offsets of words in the rings area, as Linux lays it out.
const SQ_TAIL: usize = 4;
const CQ_HEAD: usize = 8;
const CQ_TAIL: usize = 12;

/// Returns the number of a descriptor.
pub fn number(fd: Fd) -> c_int {
    match fd {
        Fd::Number(number) => number,
        // An index into the rings that a thread has registered is no descriptor.
        Fd::Ring(_) => Some(ring(fd)).filter(|number| *number >= 10).unwrap_or(-1),
    }
}

/// Returns the ring argument of enter and register, which may also be the index of a registered ring.
fn ring(fd: Fd) -> c_int {
    match fd {
        Fd::Number(number) => number,
        Fd::Ring(slot) => get(&KNOWN[usize::from(slot)].fd),
    }
}

/// Makes one step.
pub fn step(step: &Step) {
    match step {
        Step::Setup { slot, entries, cq_entries, flags, idle_ms, attach, params, map } => {
            let wanted = Params {
                cq_entries: *cq_entries,
                flags: *flags,
                sq_thread_idle: *idle_ms,
                wq_fd: number(*attach) as u32,
                ..Params::default()
            };
            setup(*slot, *entries, wanted, *params, *map);
        }
        Step::Submit { slot, requests, enter } => submit(*slot, requests, enter),
        Step::Enter(enter) => {
            self::enter(enter);
        }
        Step::Register { ring, opcode, argument, count } => {
            let ring = self::ring(*ring) as u32;
            call::call(
                NR_IO_URING_REGISTER,
                [u64::from(ring), u64::from(*opcode), resolve(*argument), u64::from(*count), 0, 0],
            );
        }
        Step::MapBufferRing { slot, group, number } => {
            let offset = IORING_OFF_PBUF_RING as i64 | i64::from(*group) << 16;
            let (area, fd) = (Area::BufferRing(*number), self::number(Fd::Ring(*slot)));
            arena::map_as(
                area.start(),
                arena::PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                offset,
            );
        }
        Step::Reap { slot } => {
            let words = Area::Rings(*slot).start();
            if let Some(tail) = call::peek_u32(words + CQ_TAIL) {
                poke_u32(words + CQ_HEAD, tail);
            }
        }
        Step::Poll { slot, how } => poll(number(Fd::Ring(*slot)), *how),
        _ => unreachable!("{step:?} is no step on a ring"),
    }
}

fn setup(slot: u8, entries: u32, mut params: Params, elsewhere: Option<Word>, map: bool) {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let (rings, sqes) = (Area::Rings(slot), Area::Sqes(slot));
    if params.flags & IORING_SETUP_NO_MMAP != 0 {
        let kind =
            libc::MAP_ANONYMOUS | if entries.is_multiple_of(2) { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        for area in [rings, sqes] {
            arena::map_as(area.start(), area.bytes() / 4, both, kind, -1, 0);
        }
        params.cq_off.user_addr = rings.start() as u64;
        params.sq_off.user_addr = sqes.start() as u64;
    }
    let address = elsewhere.map_or(&raw mut params as u64, resolve);
    let fd = call::call(NR_IO_URING_SETUP, [u64::from(entries), address, 0, 0, 0, 0]);
    if fd < 0 {
        return;
    }
    let known = &KNOWN[usize::from(slot)];
    // Every second time the old ring stays open, like one that a program forgot.
    let old = known.fd.swap(fd as i32, Ordering::Relaxed);
    if entries.is_multiple_of(2) && old >= 10 && old != fd as i32 {
        // SAFETY: a ring's number, or by now another file's that nothing depends on.
        unsafe { libc::close(old) };
    }
    HANDLER_ENTERS.store(number(Fd::Ring(0)), Ordering::Relaxed);
    if elsewhere.is_some() {
        return;
    }
    known.flags.store(params.flags, Ordering::Relaxed);
    known.sq_entries.store(params.sq_entries, Ordering::Relaxed);
    known.array.store(params.sq_off.array, Ordering::Relaxed);
    if !map || params.flags & IORING_SETUP_NO_MMAP != 0 {
        return;
    }
    let cqe = if params.flags & IORING_SETUP_CQE32 != 0 { 32 } else { 16 };
    let cq_end = params.cq_off.cqes as usize + params.cq_entries as usize * cqe;
    let array_end = params.sq_off.array as usize + 4 * params.sq_entries as usize;
    let sqe = if params.flags & IORING_SETUP_SQE128 != 0 { 128 } else { 64 };
    let bytes = [cq_end.max(array_end), params.sq_entries as usize * sqe];
    for (area, bytes, offset) in [(rings, bytes[0], IORING_OFF_SQ_RING), (sqes, bytes[1], IORING_OFF_SQES)] {
        let bytes = bytes.next_multiple_of(arena::PAGE);
        assert!(bytes <= area.bytes(), "a ring's memory is as large as Linux makes it");
        // Unmaps the rest of a larger ring.
        arena::map(area.start(), area.bytes(), libc::PROT_NONE, -1, 0);
        let shared = libc::MAP_SHARED | libc::MAP_POPULATE;
        arena::map_as(area.start(), bytes, both, shared, fd as c_int, offset as i64);
    }
}

fn sqe(request: &Request) -> Sqe {
    Sqe {
        opcode: request.opcode,
        flags: request.flags,
        ioprio: request.ioprio,
        fd: number(request.fd),
        off: resolve(request.off),
        addr: resolve(request.addr),
        len: request.len,
        op_flags: request.op_flags,
        user_data: request.user_data,
        buf_index: request.buf_index,
        personality: request.personality,
        file_index: number(request.file_index) as u32,
        addr3: resolve(request.addr3),
        pad2: request.pad2,
    }
}

fn submit(slot: u8, requests: &[Request], enter: &Enter) {
    let known = &KNOWN[usize::from(slot)];
    let (words, sqes) = (Area::Rings(slot).start(), Area::Sqes(slot).start());
    let (flags, entries) = (known.flags.load(Ordering::Relaxed), known.sq_entries.load(Ordering::Relaxed));
    let size = if flags & IORING_SETUP_SQE128 != 0 { 128 } else { 64 };
    if let Some(tail) = call::peek_u32(words + SQ_TAIL).filter(|_| entries != 0) {
        for (number, request) in (0..).zip(requests) {
            let at = tail.wrapping_add(number) & (entries - 1);
            let sqe = sqe(request);
            // SAFETY: a plain structure of 64 bytes without padding.
            let bytes = unsafe { std::slice::from_raw_parts((&raw const sqe).cast::<u8>(), size_of::<Sqe>()) };
            poke(sqes + at as usize * size, bytes);
            if flags & IORING_SETUP_NO_SQARRAY == 0 {
                poke_u32(words + known.array.load(Ordering::Relaxed) as usize + 4 * at as usize, at);
            }
        }
        poke_u32(words + SQ_TAIL, tail.wrapping_add(requests.len() as u32));
    }
    self::enter(enter);
}

/// io_uring_enter(2).
pub fn enter(enter: &Enter) -> i64 {
    let Enter { ring, to_submit, min_complete, flags, argument, size } = *enter;
    let numbers = [self::ring(ring) as u32, to_submit, min_complete, flags].map(u64::from);
    let [ring, to_submit, min_complete, flags] = numbers;
    call::call(NR_IO_URING_ENTER, [ring, to_submit, min_complete, flags, resolve(argument), size])
}

fn poll(fd: c_int, how: u8) {
    let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: locals, and times of a few milliseconds.
    unsafe {
        match how {
            0 => {
                libc::poll(&mut one, 1, 3);
            }
            1 => {
                let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
                let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
                libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut event);
                libc::epoll_wait(set, &mut event, 1, 3);
                libc::close(set);
            }
            _ if (0..libc::FD_SETSIZE as c_int).contains(&fd) => {
                let mut set: libc::fd_set = std::mem::zeroed();
                libc::FD_SET(fd, &mut set);
                let mut time = libc::timeval { tv_sec: 0, tv_usec: 3000 };
                let nothing = std::ptr::null_mut();
                libc::select(fd + 1, &mut set, nothing, nothing, &mut time);
            }
            _ => {}
        }
    }
}

/// Closes every known ring; with some seeds it only unmaps the memory.
pub fn close_all(seed: u64) {
    for (slot, known) in (0..).zip(&KNOWN) {
        if !seed.is_multiple_of(3) {
            arena::map(Area::Rings(slot).start(), Area::Rings(slot).bytes(), libc::PROT_NONE, -1, 0);
        }
        let fd = get(&known.fd);
        if fd >= 10 && !seed.is_multiple_of(5) {
            // SAFETY: a ring's number, or by now another file's that nothing depends on.
            unsafe { libc::close(fd) };
        }
    }
}
