//! What several processes share about a ring besides its memory: who posts, the overflow backlog, who waits, and a
//! record of every request that outlived its submitting call. One anonymous shared mapping a ring, inherited over fork.
//!
//! | field | who writes | when |
//! |---|---|---|
//! | `post_lock` | whoever posts or starts to wait | holder's thread id; see [`PostLock`] |
//! | `position`, `backlog_tail`, backlog slots | the holder of `post_lock` | while it holds it |
//! | `sq_head` | the process that submits, under its ring lock | processes take turns, as the program must see to |
//! | `waiters`, `wake_target`, `wake_sequence` | the holder of `post_lock` (a leaving waiter decrements) | |
//! | `timeouts` | the holder of `post_lock` | a TIMEOUT's CQE was posted |
//! | `watched` | any process whose program watches the descriptor | set once, never cleared |
//! | `byte_pending` | whoever sends or receives the readiness byte | while it holds its process's ring lock |
//! | record chunk owner | the process that claimed the chunk, by compare-and-swap | for as long as the ring lives |
//! | record | its chunk's owner | read by a waiter that finds the owner dead (issue 3) |

use crate::os::{Os, Sys};
use crate::Errno;
use anyring_abi::Cqe;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::mm::{MapFlags, ProtFlags};

/// CQEs that the shared backlog holds; what is beyond it stays in the posting process until there is room.
pub const BACKLOG_ENTRIES: u32 = 16_384;
/// Records of requests in flight, in chunks that processes claim.
const RECORD_CHUNKS: usize = 64;
/// Records in one chunk.
pub const CHUNK_RECORDS: usize = 256;

/// The program polls the descriptor level-triggered (a bit of [`Header::watched`]).
pub const WATCHED_LEVEL: u32 = 1;
/// The program polls the descriptor edge-triggered (a bit of [`Header::watched`]).
pub const WATCHED_EDGE: u32 = 2;

/// The first page of the mapping.
#[repr(C)]
pub struct Header {
    post_lock: AtomicU32,
    /// Next SQ position to consume, whatever the program wrote into ring memory: one process goes on where another
    /// stopped.
    pub sq_head: AtomicU32,
    /// Threads asleep (or about to be) on `wake_sequence`.
    pub waiters: AtomicU32,
    /// Those of them that sleep on the futex word, not in an epoll wait.
    pub futex_sleepers: AtomicU32,
    /// Futex word: changes when the waiters should look again.
    pub wake_sequence: AtomicU32,
    /// The lowest CQ tail that one of the waiters waits for.
    pub wake_target: AtomicU32,
    /// TIMEOUT completions so far; a change ends every wait, as in the kernel.
    pub timeouts: AtomicU32,
    /// `WATCHED_*`.
    pub watched: AtomicU32,
    /// 1 while a readiness byte is in the descriptor.
    pub byte_pending: AtomicU32,
    /// CQ tail in the low half, backlog head in the high half: one word, so that a death between two stores cannot
    /// duplicate or lose a CQE that moves from the backlog to the CQ.
    position: AtomicU64,
    backlog_tail: AtomicU32,
    /// Process id of each record chunk's owner, 0 for a free one.
    pub chunk_owner: [AtomicU32; RECORD_CHUNKS],
}

/// A CQE in the backlog.
#[repr(C)]
struct Slot {
    words: [AtomicU64; 4],
}

/// A request that left the call which submitted it. Source: decision 3 of ARCHITECTURE.md.
#[repr(C)]
pub struct Record {
    /// For the CQE that a dead owner could not post.
    pub user_data: AtomicU64,
    /// 0 free, 1 in flight. Release store by the owner pairs with the Acquire load of a waiter that finds it dead.
    pub state: AtomicU64,
}

impl Header {
    /// A waiter that registered is awake again.
    pub fn leave(&self, by_futex: bool) {
        self.futex_sleepers.fetch_sub(by_futex.into(), Ordering::Relaxed);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

const HEADER_BYTES: usize = 4096;
const BACKLOG_BYTES: usize = BACKLOG_ENTRIES as usize * size_of::<Slot>();
const RECORD_BYTES: usize = RECORD_CHUNKS * CHUNK_RECORDS * size_of::<Record>();
const BYTES: usize = HEADER_BYTES + BACKLOG_BYTES + RECORD_BYTES;
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);

/// A ring's control mapping in this process.
#[derive(Clone, Copy)]
pub struct Control {
    base: usize,
}

impl Control {
    /// Maps a zeroed control area (shared and anonymous: only touched pages take memory).
    pub fn new() -> Result<Control, Errno> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap_anonymous(core::ptr::null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        Ok(Control { base: base as usize })
    }

    /// Unmaps the area. The caller makes sure that no copy of this `Control` is used afterwards.
    pub fn unmap(self) {
        // SAFETY: the range was mapped by `new`; the caller gives up every use of it.
        let _ = unsafe { rustix::mm::munmap(self.base as *mut _, BYTES) };
    }

    /// The shared words.
    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping starts with a zero-initialised Header, all of whose fields are atomics.
        unsafe { &*(self.base as *const Header) }
    }

    fn slot(&self, index: u32) -> &Slot {
        let offset = HEADER_BYTES + (index % BACKLOG_ENTRIES) as usize * size_of::<Slot>();
        // SAFETY: the index is taken modulo the number of slots that follow the header.
        unsafe { &*((self.base + offset) as *const Slot) }
    }

    /// Record `index` of chunk `chunk`.
    pub fn record(&self, chunk: usize, index: usize) -> &Record {
        assert!(chunk < RECORD_CHUNKS && index < CHUNK_RECORDS);
        let offset = HEADER_BYTES + BACKLOG_BYTES + (chunk * CHUNK_RECORDS + index) * size_of::<Record>();
        // SAFETY: both indices were checked, and the records are the last part of the mapping.
        unsafe { &*((self.base + offset) as *const Record) }
    }

    /// Claims a free chunk of records for process `pid`.
    pub fn claim_chunk(&self, pid: u32) -> Option<usize> {
        self.header().chunk_owner.iter().position(|owner| {
            // Relaxed: the word alone is claimed, a chunk is never given back.
            owner.compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })
    }

    /// Takes the post lock for the thread with id `thread` (of any process).
    #[inline]
    pub fn lock_post(&self, thread: u32) -> PostLock<'_> {
        let header = self.header();
        // Acquire pairs with the Release swap in PostLock's drop.
        if header.post_lock.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait_for_post_lock(thread);
        }
        PostLock { control: *self, header }
    }

    /// The lock is held for tens of nanoseconds at a time: spin, then look whether the holder still lives.
    #[cold]
    fn wait_for_post_lock(&self, thread: u32) {
        let word = &self.header().post_lock;
        for round in 1u32.. {
            let holder = word.load(Ordering::Relaxed);
            // Acquire pairs with the Release swap in PostLock's drop; from a dead holder, with whatever it stored last:
            // every step under the lock leaves a state that the next holder can go on from (see `position`).
            let free = holder == 0 || (round % 1000 == 0 && !thread_lives(holder));
            if free && word.compare_exchange(holder, thread, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            match round % 100 {
                0 => drop(Sys::futex_wait(word, holder, Some(50_000))),
                _ => core::hint::spin_loop(),
            }
        }
    }
}

/// Whether a thread with this id exists (in this pid namespace).
fn thread_lives(thread: u32) -> bool {
    crate::os::syscall(libc::SYS_tkill, [thread as usize, 0, 0, 0, 0, 0]) != -(libc::ESRCH as isize)
}

/// The right to change the CQ tail, the backlog and the waiters' words. Held while CQEs are copied and for nothing else:
/// no system call, no allocation and no wake happens under it.
pub struct PostLock<'a> {
    control: Control,
    header: &'a Header,
}

impl PostLock<'_> {
    /// The tail that the CQ really has, whatever the program wrote into ring memory.
    #[inline]
    pub fn cq_tail(&self) -> u32 {
        self.header.position.load(Ordering::Relaxed) as u32
    }

    /// CQEs in the backlog.
    #[inline]
    pub fn backlog(&self) -> u32 {
        let head = (self.header.position.load(Ordering::Relaxed) >> 32) as u32;
        self.header.backlog_tail.load(Ordering::Relaxed).wrapping_sub(head)
    }

    /// Advances the CQ tail and drops `taken` CQEs from the front of the backlog, in one store.
    #[inline]
    pub fn advance(&mut self, cq_tail: u32, taken: u32) {
        let head = (self.header.position.load(Ordering::Relaxed) >> 32) as u32;
        let head = u64::from(head.wrapping_add(taken));
        // Release pairs with the Acquire of the next lock holder, should this one die before it unlocks.
        self.header.position.store(head << 32 | u64::from(cq_tail), Ordering::Release);
    }

    /// The CQE `ahead` places behind the front of the backlog.
    pub fn backlog_entry(&self, ahead: u32) -> (Cqe, [u64; 2]) {
        let head = (self.header.position.load(Ordering::Relaxed) >> 32) as u32;
        let words = &self.control.slot(head.wrapping_add(ahead)).words;
        let word = |i: usize| words[i].load(Ordering::Relaxed);
        (Cqe { user_data: word(0), res: word(1) as i32, flags: (word(1) >> 32) as u32 }, [word(2), word(3)])
    }

    /// Puts a CQE at the end of the backlog; false when that is full.
    pub fn push_backlog(&mut self, cqe: Cqe, extra: [u64; 2]) -> bool {
        if self.backlog() >= BACKLOG_ENTRIES {
            return false;
        }
        let tail = self.header.backlog_tail.load(Ordering::Relaxed);
        let words = &self.control.slot(tail).words;
        words[0].store(cqe.user_data, Ordering::Relaxed);
        words[1].store(u64::from(cqe.flags) << 32 | u64::from(cqe.res as u32), Ordering::Relaxed);
        words[2].store(extra[0], Ordering::Relaxed);
        words[3].store(extra[1], Ordering::Relaxed);
        // Release pairs with the Acquire of the next lock holder, should this one die before it unlocks.
        self.header.backlog_tail.store(tail.wrapping_add(1), Ordering::Release);
        true
    }

    /// Whether somebody sleeps who wants to know that the tail is now `cq_tail`; if so the futex word has been changed,
    /// and the caller wakes it after unlocking.
    #[inline]
    pub fn wake_wanted(&self, cq_tail: u32, timeouts: u32) -> bool {
        if self.header.waiters.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let reached = cq_tail.wrapping_sub(self.header.wake_target.load(Ordering::Relaxed)) as i32 >= 0;
        if reached || timeouts != 0 {
            self.bump();
        }
        reached || timeouts != 0
    }

    /// Changes the futex word, so that whoever is about to sleep on it does not.
    pub fn bump(&self) {
        self.header.wake_sequence.fetch_add(1, Ordering::Relaxed);
    }

    /// Registers a waiter for CQ tail `target`; answers the futex word's value to sleep on. Being registered under the
    /// lock means that every later post sees it.
    pub fn register_waiter(&mut self, target: u32, by_futex: bool) -> u32 {
        self.header.futex_sleepers.fetch_add(by_futex.into(), Ordering::Relaxed);
        let others = self.header.waiters.fetch_add(1, Ordering::Relaxed);
        let current = self.header.wake_target.load(Ordering::Relaxed);
        if others == 0 || (target.wrapping_sub(current) as i32) < 0 {
            self.header.wake_target.store(target, Ordering::Relaxed);
        }
        self.header.wake_sequence.load(Ordering::Relaxed)
    }
}

impl Drop for PostLock<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the Acquire of the next holder. Sleepers are bounded to 50 us: no wake is needed.
        self.header.post_lock.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_holder_is_replaced() {
        let control = Control::new().unwrap();
        let dead = std::thread::spawn(Sys::thread_id).join().unwrap();
        control.header().post_lock.store(dead, Ordering::Relaxed);
        assert_eq!(control.lock_post(Sys::thread_id()).backlog(), 0);
        control.unmap();
    }

    #[test]
    fn the_backlog_keeps_order_and_is_bounded() {
        let control = Control::new().unwrap();
        let mut post = control.lock_post(1);
        for n in 0..BACKLOG_ENTRIES {
            assert!(post.push_backlog(Cqe { user_data: n.into(), res: -(n as i32), flags: n }, [1, 2]));
        }
        assert!(!post.push_backlog(Cqe::default(), [0; 2]));
        assert_eq!(post.backlog_entry(7), (Cqe { user_data: 7, res: -7, flags: 7 }, [1, 2]));
        post.advance(5, 7);
        assert_eq!((post.cq_tail(), post.backlog()), (5, BACKLOG_ENTRIES - 7));
        assert_eq!(post.backlog_entry(0).0.user_data, 7);
        drop(post);
        control.unmap();
    }
}
