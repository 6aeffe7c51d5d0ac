//! A ring as a case sees it: the mapped areas, the SQ and CQ words and the three calls, through one door.
//!
//! Nothing is hidden from a case: every argument can be chosen and every word read. Only the case's own process and
//! the kernel (or the engine) touch the areas. Addresses are kept as numbers, so a ring can be handed to a thread.

use crate::door::Door;
use crate::evidence::{self, Requests};
use anyring_abi::*;
use std::sync::atomic::{fence, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The time after which `wait` reports a missing completion.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// The time without a completion after which a request counts as pending.
pub const QUIET: Duration = Duration::from_millis(30);

const PAGE: usize = 4096;

/// A ring and its mappings. Dropping it unmaps them and closes the descriptor.
pub struct Ring {
    /// The door it was made through and is used through.
    pub door: Door,
    /// The parameters that setup returned.
    pub params: Params,
    /// Its descriptor, -1 after `forget_fd`.
    pub fd: i32,
    rings: Area,
    sqes: Area,
    sq_tail: u32,
    submitted_tail: u32,
    requests: Requests,
    /// True under chaos: a wait that fails with one of [`TRANSIENT`] is repeated.
    pub disturbed: bool,
}

/// Errors that io_uring_enter(2) may return at any time. The call is then to be repeated.
pub const TRANSIENT: [i32; 3] = [libc::EAGAIN, libc::EINTR, libc::EBUSY];

struct Area {
    address: usize,
    length: usize,
}

fn page_up(length: usize) -> usize {
    length.next_multiple_of(PAGE)
}

/// Zeroed memory of the program for NO_MMAP.
fn anonymous(length: usize) -> usize {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping at an address of the kernel's choice replaces nothing.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    assert_ne!(address, libc::MAP_FAILED, "mmap of {length} bytes");
    address as usize
}

impl Ring {
    /// Makes a ring of `entries` and `flags`. The error is the result register of io_uring_setup(2).
    pub fn new(door: Door, entries: u32, flags: u32) -> Result<Ring, isize> {
        let cq_entries = if flags & IORING_SETUP_CQSIZE != 0 { entries * 4 } else { 0 };
        Self::from_params(door, entries, Params { flags, cq_entries, ..Params::default() })
    }

    /// A ring of exactly these parameters (with NO_MMAP the memory is provided here).
    pub fn from_params(door: Door, entries: u32, mut params: Params) -> Result<Ring, isize> {
        let own_memory = params.flags & IORING_SETUP_NO_MMAP != 0;
        let areas = own_memory.then(|| own_areas(entries, &mut params));
        let fd = door.setup(entries, &raw mut params as usize);
        if fd < 0 {
            return Err(fd);
        }
        let fd = fd as i32;
        let (rings, sqes) = areas.unwrap_or_else(|| map_areas(door, fd, &params));
        let requests = Requests::new(params.flags);
        Ok(Ring { door, params, fd, rings, sqes, sq_tail: 0, submitted_tail: 0, requests, disturbed: false })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        assert!(
            offset.is_multiple_of(4) && offset as usize + 4 <= self.rings.length,
            "offset {offset} in the area"
        );
        // SAFETY: the offset was checked to be aligned and inside the mapping, which lives as long as `self`; the word
        // is shared with the kernel and only ever accessed atomically.
        unsafe { AtomicU32::from_ptr((self.rings.address + offset as usize) as *mut u32) }
    }

    /// The SQ's head word.
    pub fn sq_head(&self) -> u32 {
        self.word(self.params.sq_off.head).load(Ordering::Acquire)
    }

    /// Returns the number of pushed SQEs that are not consumed yet.
    pub fn sq_ready(&self) -> u32 {
        self.sq_tail.wrapping_sub(self.sq_head())
    }

    /// `IORING_SQ_*` in the SQ's flags word.
    pub fn sq_flags(&self) -> u32 {
        fence(Ordering::SeqCst);
        let flags = self.word(self.params.sq_off.flags).load(Ordering::Acquire);
        evidence::sq_flags(flags);
        flags
    }

    /// Returns the number of invalid SQ array entries that were dropped.
    pub fn sq_dropped(&self) -> u32 {
        self.word(self.params.sq_off.dropped).load(Ordering::Acquire)
    }

    /// Returns the number of CQEs lost since the ring was made.
    pub fn cq_overflow(&self) -> u32 {
        self.word(self.params.cq_off.overflow).load(Ordering::Acquire)
    }

    /// Sets the CQ's flags word (`IORING_CQ_*`), which belongs to the program.
    pub fn set_cq_flags(&self, flags: u32) {
        self.word(self.params.cq_off.flags).store(flags, Ordering::Release);
        evidence::cq_flags(flags);
    }

    /// A word of the ring area by its offset, for the cases about the layout.
    pub fn word_at(&self, offset: u32) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Stores a word of the ring area by its offset, whichever side owns it.
    pub fn set_word_at(&self, offset: u32, value: u32) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// Writes entry `slot` of the SQ's index array.
    pub fn set_sq_array(&self, slot: u32, index: u32) {
        self.word(self.params.sq_off.array + slot * 4).store(index, Ordering::Relaxed);
    }

    /// Writes the SQE at `index`, whether or not it is submitted already.
    pub fn set_sqe(&self, index: u32, sqe: Sqe) {
        assert!(index < self.params.sq_entries, "index {index}");
        let address = self.sqes.address + index as usize * sqe_size(self.params.flags);
        // SAFETY: the area was mapped for this many entries. The kernel copies an entry when it submits it, so that it may
        // see a mixture of two at worst, each a value.
        unsafe { (address as *mut Sqe).write_volatile(sqe) };
    }

    /// Puts an SQE at the SQ's tail without telling the kernel. Panics when the SQ is full.
    pub fn push(&mut self, sqe: Sqe) {
        assert!(self.sq_ready() < self.params.sq_entries, "the SQ has room");
        let slot = self.sq_tail & (self.params.sq_entries - 1);
        self.set_sqe(slot, sqe);
        if self.params.flags & IORING_SETUP_NO_SQARRAY == 0 {
            self.set_sq_array(slot, slot);
        }
        self.sq_tail = self.sq_tail.wrapping_add(1);
        self.requests.pushed(&sqe);
    }

    /// Stores the SQ's tail: how many entries were added since the last time.
    pub fn publish(&mut self) -> u32 {
        // Release pairs with the kernel's acquire of the tail: it must see the entries above.
        self.word(self.params.sq_off.tail).store(self.sq_tail, Ordering::Release);
        let count = self.sq_tail.wrapping_sub(self.submitted_tail);
        self.submitted_tail = self.sq_tail;
        count
    }

    /// io_uring_enter(2) with all its arguments.
    pub fn enter(&self, to_submit: u32, min_complete: u32, flags: u32, arg: usize, size: usize) -> isize {
        self.door.enter(self.fd, to_submit, min_complete, flags, arg, size)
    }

    /// Submits everything pushed, without waiting. Returns the result of io_uring_enter(2).
    pub fn submit(&mut self) -> isize {
        let count = self.publish();
        self.enter(count, 0, 0, 0, 0)
    }

    /// Submits everything pushed and waits for `min_complete` CQEs. Returns the result of io_uring_enter(2).
    pub fn submit_and_wait(&mut self, min_complete: u32) -> isize {
        let count = self.publish();
        self.enter(count, min_complete, IORING_ENTER_GETEVENTS, 0, 0)
    }

    /// Pushes and submits one SQE that must be accepted.
    pub fn go(&mut self, sqe: Sqe) {
        self.go_all(&[sqe]);
    }

    /// Pushes and submits these SQEs, which must all be consumed.
    pub fn go_all(&mut self, sqes: &[Sqe]) {
        for sqe in sqes {
            self.push(*sqe);
        }
        assert_eq!(self.submit(), sqes.len() as isize, "enter consumes every SQE");
    }

    /// Returns the number of CQEs in the CQ.
    pub fn cq_ready(&self) -> u32 {
        // Acquire pairs with the kernel's release of the tail: its entries are visible.
        let tail = self.word(self.params.cq_off.tail).load(Ordering::Acquire);
        tail.wrapping_sub(self.word(self.params.cq_off.head).load(Ordering::Relaxed))
    }

    /// Takes the next CQE out of the CQ without any call.
    pub fn peek(&mut self) -> Option<Cqe> {
        self.peek_whole().map(|(cqe, _)| cqe)
    }

    /// Takes the next CQE out of the CQ, with its second half if it has one. One that says to skip it is passed over.
    pub fn peek_whole(&mut self) -> Option<(Cqe, Option<[u64; 2]>)> {
        if self.cq_ready() == 0 {
            return None;
        }
        let head = self.word(self.params.cq_off.head);
        let at = head.load(Ordering::Relaxed);
        let slot = (at & (self.params.cq_entries - 1)) as usize;
        let address = self.rings.address + self.params.cq_off.cqes as usize + slot * cqe_size(self.params.flags);
        // SAFETY: the slot is inside the CQ, and the kernel does not write it again before the head moves on.
        let cqe = unsafe { (address as *const Cqe).read() };
        let double = self.params.flags & IORING_SETUP_CQE_MIXED != 0 && cqe.flags & IORING_CQE_F_32 != 0;
        let extra = (double || self.params.flags & IORING_SETUP_CQE32 != 0).then(|| {
            assert!(!double || slot as u32 + 1 < self.params.cq_entries, "a CQE of two entries does not wrap");
            // SAFETY: the entry's second half, inside the CQ: in the same slot, or in the next one, which there is.
            unsafe { ((address + size_of::<Cqe>()) as *const [u64; 2]).read() }
        });
        // Release pairs with the kernel's acquire of the head: the entry was read before it may be overwritten.
        head.store(at.wrapping_add(1 + u32::from(double)), Ordering::Release);
        self.requests.completed(&cqe);
        if self.params.flags & IORING_SETUP_CQE_MIXED != 0 && cqe.flags & IORING_CQE_F_SKIP != 0 {
            return self.peek_whole();
        }
        Some((cqe, extra))
    }

    /// The CQ's head and tail.
    pub fn cq_positions(&self) -> (u32, u32) {
        let position = |offset| self.word(offset).load(Ordering::Acquire);
        (position(self.params.cq_off.head), position(self.params.cq_off.tail))
    }

    /// Waits in io_uring_enter(2) for one more CQE, for at most `limit`.
    pub fn wait_for(&mut self, limit: Duration) -> Option<Cqe> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(cqe) = self.peek() {
                return Some(cqe);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let ts = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let arg = GeteventsArg { ts: &raw const ts as u64, ..GeteventsArg::default() };
            let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
            let (arg, size) = (&raw const arg as usize, size_of::<GeteventsArg>());
            let answer = self.door.enter_unseen(self.fd, 0, 1, flags, arg, size);
            if left.is_zero() && self.cq_ready() == 0 {
                return None;
            }
            let error = answer.min(0).unsigned_abs() as i32;
            let is_expected = error == 0 || error == libc::ETIME || self.disturbed && TRANSIENT.contains(&error);
            assert!(is_expected, "a wait answered {answer}");
        }
    }

    /// The next CQE, waited for with patience; panics when none comes.
    #[track_caller]
    pub fn wait(&mut self) -> Cqe {
        match self.wait_for(PATIENCE) {
            Some(cqe) => cqe,
            None => panic!("no CQE came in {PATIENCE:?}"),
        }
    }

    /// The next `count` CQEs in the order of the CQ.
    #[track_caller]
    pub fn wait_all(&mut self, count: usize) -> Vec<Cqe> {
        let mut cqes = Vec::with_capacity(count);
        for _ in 0..count {
            cqes.push(self.wait()); // not in a closure: a panic names the line of the case
        }
        cqes
    }

    /// The next `count` CQEs as `(user_data, res)`, sorted, for requests whose order is free.
    #[track_caller]
    pub fn wait_sorted(&mut self, count: usize) -> Vec<(u64, i32)> {
        let mut results: Vec<_> = self.wait_all(count).iter().map(|cqe| (cqe.user_data, cqe.res)).collect();
        results.sort_unstable();
        results
    }

    /// The next `count` CQEs as `(user_data, res)` in the order of the CQ.
    #[track_caller]
    pub fn wait_ordered(&mut self, count: usize) -> Vec<(u64, i32)> {
        self.wait_all(count).iter().map(|cqe| (cqe.user_data, cqe.res)).collect()
    }

    /// Submits one SQE, and returns the result of its one CQE.
    #[track_caller]
    pub fn run(&mut self, sqe: Sqe) -> i32 {
        let user_data = sqe.user_data;
        self.go(sqe);
        let cqe = self.wait();
        assert_eq!(cqe.user_data, user_data, "the CQE of the submission");
        cqe.res
    }

    /// Panics when a CQE comes within [`QUIET`].
    #[track_caller]
    pub fn expect_quiet(&mut self) {
        if let Some(cqe) = self.wait_for(QUIET) {
            panic!("a CQE came although nothing should have completed: {cqe:?}");
        }
    }

    /// io_uring_register(2).
    pub fn register(&self, opcode: u32, arg: usize, count: u32) -> isize {
        self.door.register(self.fd, opcode, arg, count)
    }

    /// Calls IORING_REGISTER_RESIZE_RINGS with these entries and flags, and with the program's own memory for NO_MMAP.
    /// On success the ring is mapped anew, and its SQ array is filled.
    pub fn resize(&mut self, entries: u32, cq_entries: u32, flags: u32) -> isize {
        let mut params = Params { sq_entries: entries, cq_entries, flags, ..Params::default() };
        let shape = Params { flags: self.params.flags, ..params };
        let own = (self.params.flags & IORING_SETUP_NO_MMAP != 0).then(|| {
            let mut shape = shape;
            let areas = own_areas(entries, &mut shape);
            (params.sq_off.user_addr, params.cq_off.user_addr) = (shape.sq_off.user_addr, shape.cq_off.user_addr);
            areas
        });
        let answer = self.register(IORING_REGISTER_RESIZE_RINGS, &raw mut params as usize, 1);
        if answer == 0 {
            self.map_anew(Params { flags: self.params.flags, features: self.params.features, ..params }, own);
        }
        answer
    }

    fn map_anew(&mut self, mut params: Params, own: Option<(Area, Area)>) {
        if params.flags & IORING_SETUP_NO_SQARRAY == 0 && params.sq_off.array == 0 {
            // Linux 6.18 does not report it: it follows the CQEs.
            let header = params.cq_off.cqes * cqe_size(params.flags) as u32 / 16;
            let cqes = params.cq_entries * cqe_size(params.flags) as u32;
            params.sq_off.array = (header + cqes).next_multiple_of(64);
        }
        let (rings, sqes) = own.unwrap_or_else(|| map_areas(self.door, self.fd, &params));
        self.door.munmap(self.rings.address, self.rings.length);
        self.door.munmap(self.sqes.address, self.sqes.length);
        (self.params, self.rings, self.sqes) = (params, rings, sqes);
        if params.flags & IORING_SETUP_NO_SQARRAY == 0 {
            (0..params.sq_entries).for_each(|slot| self.set_sq_array(slot, slot));
        }
    }

    /// Registers these descriptors as the fixed files.
    pub fn register_files(&self, files: &[i32]) {
        assert_eq!(self.register(IORING_REGISTER_FILES, files.as_ptr() as usize, files.len() as u32), 0);
    }

    /// Registers these buffers.
    pub fn register_buffers(&self, buffers: &[libc::iovec]) -> isize {
        self.register(IORING_REGISTER_BUFFERS, buffers.as_ptr() as usize, buffers.len() as u32)
    }

    /// Closes the descriptor now; the mappings stay until the ring is dropped.
    pub fn close_fd(&mut self) {
        assert_eq!(self.door.close(self.fd), 0, "close of the ring");
        self.fd = -1;
    }

    /// Maps new memory in place of a closed ring that was made with IORING_SETUP_NO_MMAP.
    pub fn other_memory_there(&mut self) -> &mut [u8] {
        assert!(self.fd < 0 && self.params.flags & IORING_SETUP_NO_MMAP != 0);
        let (at, length) = (self.rings.address as *mut libc::c_void, self.rings.length);
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: in place of a mapping of this length that is `self`'s own, lives as long, and to which nothing refers.
        unsafe {
            assert_eq!(libc::mmap(at, length, prot, flags, -1, 0), at);
            std::slice::from_raw_parts_mut(at.cast(), length)
        }
    }

    /// Gives up the descriptor, which the case closes in another way. Returns its number.
    pub fn forget_fd(&mut self) -> i32 {
        std::mem::replace(&mut self.fd, -1)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.door.munmap(self.rings.address, self.rings.length);
        self.door.munmap(self.sqes.address, self.sqes.length);
        if self.fd >= 0 {
            self.door.close(self.fd);
        }
    }
}

/// Allocates memory for a ring of `entries` with NO_MMAP, and puts its addresses into `params`.
fn own_areas(entries: u32, params: &mut Params) -> (Area, Area) {
    // Twice the entries covers the rounding up, and a page the words before the CQEs.
    let entries = entries as usize * 2;
    let cq_entries = (entries * 2).max(params.cq_entries as usize * 2);
    let rings = page_up(PAGE + cq_entries * cqe_size(params.flags) + entries * 4);
    let sqes = page_up(entries * sqe_size(params.flags));
    let rings = Area { address: anonymous(rings), length: rings };
    let sqes = Area { address: anonymous(sqes), length: sqes };
    params.cq_off.user_addr = rings.address as u64;
    params.sq_off.user_addr = sqes.address as u64;
    (rings, sqes)
}

fn map_areas(door: Door, fd: i32, params: &Params) -> (Area, Area) {
    let map = |length, offset| {
        let address = door.mmap(length, fd, offset);
        assert!(address > 0, "mmap of the ring at {offset:#x} answered {address}");
        Area { address: address as usize, length }
    };
    let sqes = params.sq_entries as usize * sqe_size(params.flags);
    (map(ring_length(params), u64::from(IORING_OFF_SQ_RING)), map(sqes, u64::from(IORING_OFF_SQES)))
}

/// The length of the mapping that holds both rings.
pub fn ring_length(params: &Params) -> usize {
    let cq = params.cq_off.cqes as usize + params.cq_entries as usize * cqe_size(params.flags);
    let sq = params.sq_off.array as usize + params.sq_entries as usize * 4;
    cq.max(sq)
}

/// Bytes of one CQE under these setup flags.
pub fn cqe_size(flags: u32) -> usize {
    if flags & IORING_SETUP_CQE32 != 0 {
        32
    } else {
        16
    }
}

/// Bytes of one SQE under these setup flags.
pub fn sqe_size(flags: u32) -> usize {
    if flags & IORING_SETUP_SQE128 != 0 {
        128
    } else {
        64
    }
}
