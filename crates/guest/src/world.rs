//! The records ([`Block`]) of the guest's threads, found by the thread's id.
//!
//! The host is not informed of a thread's end. exit(2) is not trapped, since detached threads of musl and Zig call it
//! when their stack is gone. A record is reused for another thread once the kernel reports that its thread no longer
//! exists ([`Block::is_left`]).

use crate::arch::trap::Begin;
use anyring_engine::os::arch::page_bytes;
use anyring_serve::sys;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering};

/// The most calls of one thread that may be in progress at the same time. A signal handler interrupts each of them
/// and makes the next one.
pub const LEVELS: usize = 16;
/// Size of one stack on which a call is made, in bytes. Guest handlers that interrupt the call run there, too.
pub const STACK: usize = 256 << 10;

/// The most threads that a guest may have at the same time.
const BLOCKS: usize = 16 << 10;
/// One more than the largest thread id (PID_MAX_LIMIT in the kernel).
const TIDS: usize = 4 << 20;

/// The record of one of the guest's threads. Only the thread itself and its handlers change it, until it is claimed for
/// a new thread.
#[repr(C)]
pub struct Block {
    /// The thread pointer in the host's world: a TCB of the host's glibc.
    pub host_tp: AtomicUsize,
    /// The thread pointer in the guest's world, as it was when the thread last left that world.
    pub guest_tp: AtomicUsize,
    /// The block's index in [`ALL`], plus 1, as in [`BY_TID`].
    index: u16,
    /// The stacks.
    pub levels: [Level; LEVELS],
    /// The key for [`crate::fast`]: the negative of the guest's thread pointer, or [`NOT_FOUND`].
    pub minus_tp: AtomicUsize,
    /// The address of the registers of a call that comes by a jump: at the top of the first stack.
    pub frame: AtomicUsize,
    /// Start and size of a stack on which calls must use a trap: the alternate signal stack, as last recorded.
    pub avoided: [AtomicUsize; 2],
    /// The thread pointer with which the thread began, plus 1, if the thread shares it with its parent and still has it.
    /// Otherwise 0.
    pub inherited_tp: AtomicUsize,
    /// A digest of the last call that changed this thread's identity, made by the thread or by the one that made it.
    pub identity: AtomicU64,
    /// The thread's id; 0 for none, [`CLAIMED`] while the block is prepared for a thread.
    pub tid: AtomicU32,
    /// True if the thread runs in its parent's memory, but is another process (vfork(2)).
    pub is_borrowed: AtomicBool,
    /// True if a child of fork(2) inherited the block of a thread that it does not have.
    is_inherited: AtomicBool,
    /// True if a handler has left a call by a jump.
    pub has_jumped: AtomicBool,
    /// The guest's stack pointer at the trap of each level.
    pub trapped_at: [AtomicUsize; LEVELS],
    /// The alternate signal stack that is disabled while a level's call is served (address, size, flags). The size is 0
    /// if there is none.
    pub alternate: [[AtomicUsize; 3]; LEVELS],
    /// One past the end of each level's stack, 0 if it is not mapped.
    stacks: [AtomicUsize; LEVELS],
    /// The signal mask with which a new thread begins.
    pub mask: AtomicU64,
    /// The registers with which a new thread begins.
    pub begin: core::cell::UnsafeCell<Begin>,
}

/// One of a thread's stacks.
#[repr(C)]
pub struct Level {
    /// 1 while the stack is in use.
    pub busy: AtomicU8,
    /// The flags with which its call was made, for r11.
    pub flags: AtomicU64,
}

/// The value of [`Block::minus_tp`] for a thread that is not found by its thread pointer. It stands for a thread pointer of -1,
/// which no thread has.
pub const NOT_FOUND: usize = 1;

/// Offset of [`Block::host_tp`], for the assembly.
pub const HOST_TP: usize = offset_of!(Block, host_tp);
/// Offset of [`Block::guest_tp`].
pub const GUEST_TP: usize = offset_of!(Block, guest_tp);
/// Offset of [`Block::tid`].
pub const TID: usize = offset_of!(Block, tid);
/// Offset of `Block::index`.
pub const INDEX: usize = offset_of!(Block, index);
/// Offset of [`Block::begin`].
pub const BEGIN: usize = offset_of!(Block, begin);

/// A thread id that no thread has: the block is being prepared.
const CLAIMED: u32 = u32::MAX;

/// All blocks, filled from the beginning; none is ever freed.
pub static ALL: [AtomicPtr<Block>; BLOCKS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; BLOCKS];
static MADE: AtomicUsize = AtomicUsize::new(0);

/// The index in [`ALL`], plus 1, of the last thread that had a thread id. A thread writes its own entry before it makes
/// any of the guest's calls. Most of the table's pages are never touched.
pub static BY_TID: [AtomicU16; TIDS] = [const { AtomicU16::new(0) }; TIDS];

/// Returns the calling thread's block, or `None` for an engine thread. Async-signal-safe, and uses no thread-local
/// memory.
pub fn mine() -> Option<&'static Block> {
    let tid = sys::thread_id() as u32;
    let index = BY_TID.get(tid as usize)?.load(Ordering::Relaxed);
    let block = block(usize::from(index).checked_sub(1)?)?;
    (block.tid.load(Ordering::Relaxed) == tid).then_some(block)
}

/// True if the thread of `mine` is the only guest thread in this process. Async-signal-safe.
pub fn is_only_one(mine: &Block) -> bool {
    !any_other(mine, |_| true)
}

/// True if the last call that changed a thread's identity ([`Block::identity`]) was the same in all of the guest's
/// threads.
pub fn all_agree(mine: &Block) -> bool {
    let identity = mine.identity.load(Ordering::Relaxed);
    // SeqCst: partner of the store in `change_identity`.
    !any_other(mine, |other| other.identity.load(Ordering::SeqCst) != identity)
}

/// True if `is_such` holds for another guest thread in this process.
fn any_other(mine: &Block, is_such: impl Fn(&Block) -> bool) -> bool {
    let is_there = |other: &Block| {
        let tid = other.tid.load(Ordering::Relaxed);
        let is_of_process = tid != 0 && !other.is_borrowed.load(Ordering::Relaxed);
        is_of_process && (tid == CLAIMED || !other.is_left(tid) && !is_leader_that_left(tid))
    };
    let made = MADE.load(Ordering::Relaxed).min(BLOCKS);
    let mut others = (0..made).filter_map(block).filter(|other| !core::ptr::eq(*other, mine));
    others.any(|other| is_such(other) && is_there(other))
}

/// True if this is the process's first thread and has ended: the kernel keeps it while others run.
fn is_leader_that_left(tid: u32) -> bool {
    i64::from(tid) == sys::process_id() as i64 && anyring_engine::thread::leader_has_left()
}

fn block(place: usize) -> Option<&'static Block> {
    // Acquire pairs with the Release in `add`.
    let block = ALL.get(place)?.load(Ordering::Acquire);
    // SAFETY: blocks are leaked, and shared by atomics only, except `begin`, which is its claimer's.
    unsafe { block.as_ref() }
}

/// Makes a block for the calling thread, the first one. False if there is no room.
pub fn adopt_first() -> bool {
    let Some(block) = add(crate::arch::tls::current()) else { return false };
    block.enter();
    block.has_stacks()
}

fn add(host_tp: usize) -> Option<&'static Block> {
    let place = MADE.fetch_add(1, Ordering::Relaxed);
    if place >= BLOCKS {
        MADE.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    // SAFETY: all zeroes is a valid block: integers and registers.
    let mut block: Box<Block> = Box::new(unsafe { core::mem::zeroed() });
    block.host_tp = AtomicUsize::new(host_tp);
    block.index = place as u16 + 1;
    block.tid = AtomicU32::new(CLAIMED);
    block.minus_tp = AtomicUsize::new(NOT_FOUND);
    let block = Box::leak(block);
    // Release pairs with the Acquire in `block`.
    ALL[place].store(block, Ordering::Release);
    Some(block)
}

/// Claims a block for a thread that is about to be made: the block of a thread that has ended, or a new one. `None` if
/// there are too many threads, or no memory. Call it in the host's world, with all signals blocked.
pub fn claim() -> Option<&'static Block> {
    /// Number of blocks that are checked for a thread that has ended.
    const LOOKS: usize = 8;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let made = MADE.load(Ordering::Relaxed).min(BLOCKS);
    let looks = if made < BLOCKS { made.min(LOOKS) } else { made };
    for _ in 0..looks {
        let candidate = block(NEXT.fetch_add(1, Ordering::Relaxed) % made);
        if let Some(block) = candidate.filter(|block| block.claim()) {
            crate::tcb::renew(block.host_tp.load(Ordering::Relaxed), !block.belongs_to_another());
            block.clear();
            return block.or_given_back();
        }
    }
    let fs = crate::tcb::allocate()?;
    add(fs)?.or_given_back()
}

/// Resets the blocks in a forked child, whose only thread has `kept`. The others belong to threads that the child
/// does not have.
pub fn renew_after_fork(kept: &Block) {
    let made = MADE.load(Ordering::Relaxed).min(BLOCKS);
    for other in (0..made).filter_map(block).filter(|other| !core::ptr::eq(*other, kept)) {
        other.is_inherited.store(true, Ordering::Relaxed);
        other.tid.store(0, Ordering::Relaxed);
        other.minus_tp.store(NOT_FOUND, Ordering::Relaxed);
    }
    crate::arch::fast::renew_after_fork(kept);
    kept.is_borrowed.store(false, Ordering::Relaxed);
}

impl Block {
    /// Makes this the calling thread's block from now on.
    pub fn enter(&self) {
        let tid = sys::thread_id() as u32;
        self.tid.store(tid, Ordering::Relaxed);
        if let Some(entry) = BY_TID.get(tid as usize) {
            entry.store(self.index, Ordering::Relaxed);
        }
    }

    /// True if the block's thread has ended.
    fn is_left(&self, tid: u32) -> bool {
        let (process, tid) = (sys::process_id() as usize, tid as usize);
        let ask = match self.is_borrowed.load(Ordering::Relaxed) {
            // The only thread of another process.
            true => (libc::SYS_kill, [tid, 0, 0, 0, 0, 0]),
            false => (libc::SYS_tgkill, [process, tid, 0, 0, 0, 0]),
        };
        // SAFETY: signal 0 is never delivered.
        unsafe { sys::call(ask.0, ask.1) == -(libc::ESRCH as isize) }
    }

    /// Claims the block if its thread has ended. Returns whether it did.
    fn claim(&self) -> bool {
        let tid = self.tid.load(Ordering::Relaxed);
        let is_free =
            tid == 0 || (tid != CLAIMED && (self.is_inherited.load(Ordering::Relaxed) || self.is_left(tid)));
        // Acquire pairs with the Release in `give_back`.
        is_free && self.tid.compare_exchange(tid, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// True if the thread's thread-locals belong to another process, so that this process must not destroy them.
    fn belongs_to_another(&self) -> bool {
        self.is_inherited.load(Ordering::Relaxed) || self.is_borrowed.load(Ordering::Relaxed)
    }

    fn clear(&self) {
        self.levels.iter().for_each(|level| level.busy.store(0, Ordering::Relaxed));
        self.minus_tp.store(NOT_FOUND, Ordering::Relaxed);
        self.inherited_tp.store(0, Ordering::Relaxed);
        self.alternate.iter().for_each(|alternate| alternate[1].store(0, Ordering::Relaxed));
        for flag in [&self.is_borrowed, &self.is_inherited, &self.has_jumped] {
            flag.store(false, Ordering::Relaxed);
        }
    }

    /// Maps the stacks for a thread's calls, and for the calls of a handler that interrupts one. False if there is no
    /// memory.
    fn has_stacks(&self) -> bool {
        (0..2).all(|level| self.stack(level).is_some())
    }

    /// Returns the block if its thread has stacks. Otherwise releases it.
    fn or_given_back(&'static self) -> Option<&'static Block> {
        let has_stacks = self.has_stacks();
        if !has_stacks {
            self.give_back();
        }
        has_stacks.then_some(self)
    }

    /// Releases the block: another thread may take it.
    pub fn give_back(&self) {
        // Release pairs with the Acquire in `claim`.
        self.tid.store(0, Ordering::Release);
    }

    /// Returns the address after the end of a level's stack, which is mapped if it is not yet. `None` if there is no
    /// memory or no such level. Async-signal-safe.
    pub fn stack(&self, level: usize) -> Option<usize> {
        match self.stacks.get(level)?.load(Ordering::Relaxed) {
            0 => self.map(level),
            top => Some(top),
        }
    }

    #[cold]
    fn map(&self, level: usize) -> Option<usize> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let map = [0, STACK + page_bytes(), protection as usize, flags as usize, usize::MAX, 0];
        // SAFETY: a new mapping at a place of the kernel's choice, whose lowest page becomes inaccessible.
        unsafe {
            let base = sys::call(libc::SYS_mmap, map);
            if (-4095..0).contains(&base) {
                return None;
            }
            sys::call(libc::SYS_mprotect, [base as usize, page_bytes(), libc::PROT_NONE as usize, 0, 0, 0]);
            let top = base as usize + page_bytes() + STACK;
            self.stacks[level].store(top, Ordering::Relaxed);
            Some(top)
        }
    }

    /// True if an address is on one of the stacks here.
    pub fn is_on_stack(&self, address: usize) -> bool {
        self.stack_with(address).is_some()
    }

    /// Returns the address after the end of the stack here that this address is on.
    pub fn stack_with(&self, address: usize) -> Option<usize> {
        let tops = self.stacks.iter().map(|top| top.load(Ordering::Relaxed));
        tops.filter(|top| *top != 0).find(|top| (top - STACK..*top).contains(&address))
    }
}
