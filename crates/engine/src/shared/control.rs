//! State of a ring that several processes share, in addition to its memory. It holds the member processes, the
//! posting process, the overflow list (backlog) and the waiters. It also has a record of every request that outlived
//! its submitting call, while there are free records. Each ring has one anonymous shared mapping for this state, inherited over fork.
//!
//! | field | who writes | notes |
//! |---|---|---|
//! | `post_lock` | a process that posts or starts to wait | its value is the holder's member number plus 1 (see [`PostLock`]) |
//! | `poster` | the same, while no other process has joined | replaces `post_lock`, without compare-and-swap |
//! | `position`, `backlog_tail`, backlog slots | the holder of `post_lock` | while it holds the lock |
//! | `sq_head` | the process that submits, under its ring lock | by compare-and-swap once `shared` is set |
//! | `shared`, `submitter` | see `shared::member` | |
//! | `generation`, `entries`, `area` | a process that resizes the ring, if no other process uses it; `entries` also the maker | see `ring::resize` |
//! | `label`, `maker_depth` | the maker | see `shared::label`, `shared::fences` |
//! | `waiters` | the holder of `post_lock` (see [`Waiters`]) | |
//! | `room_waiters` | each thread that waits for room in the SQ, which counts itself | the polling thread reads it after it consumed SQEs |
//! | `watched` | any process whose program watches the descriptor | set once, never cleared |
//! | `byte_pending` | a process that sends or receives the readiness byte | while it holds its process's ring lock |
//! | `broken` | a process in which a panic hit this ring, under its ring lock | set once, never cleared |
//! | a member's words | the process that has its lock, see `shared::member` | |
//! | record chunk owner | the member that claims the chunk, or takes it over from a dead member | by compare-and-swap |
//! | record | its chunk's owner | read by a process that finds the owner dead |
//!
//! Within one process everything in this mapping is accessed under the ring's lock. So `post_lock` excludes only
//! other processes, and its holder is a process.

use crate::memory;
use crate::mutation::{mutated, Mutation};
use crate::os::arch::LARGEST_PAGE_BYTES;
use crate::os::calls;
use crate::os::{Os, Sys};
use crate::shared::fences;
use crate::shared::label::Label;
use crate::shared::waiters::Waiters;
use crate::Errno;
use anyring_abi::Cqe;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::fd::AsFd;

/// Number of CQEs that the shared backlog holds. Further CQEs stay in the posting process until there is room.
pub const BACKLOG_ENTRIES: u32 = 16_384;
/// Number of chunks of records of requests in flight. Processes claim whole chunks.
const RECORD_CHUNKS: usize = 64;
/// Records in one chunk.
pub const CHUNK_RECORDS: usize = 256;

/// The bit of [`Header::watched`] that says that the program polls the descriptor level-triggered.
pub const WATCHED_LEVEL: u32 = 1;
/// The bit of [`Header::watched`] that says that the program polls the descriptor edge-triggered.
pub const WATCHED_EDGE: u32 = 2;

/// The first words of the mapping.
#[repr(C)]
pub struct Header {
    post_lock: AtomicU32,
    /// The member number, plus 1, of the process that posts without compare-and-swap; 0 for none.
    poster: AtomicU32,
    /// 1 once a panic hit this ring, in any process. Every call on the ring then fails with EIO.
    pub broken: AtomicU32,
    /// The next SQ position to consume. It does not depend on the program's writes to ring memory, so one process
    /// continues where another stopped.
    pub sq_head: AtomicU32,
    /// The threads that wait for completions.
    pub waiters: Waiters,
    /// Number of threads in io_uring_enter(2) that wait for room in the SQ (IORING_ENTER_SQ_WAIT). They sleep on the
    /// same futex word as the threads that wait for completions.
    pub room_waiters: AtomicU32,
    /// `WATCHED_*` bits.
    pub watched: AtomicU32,
    /// 1 while a readiness byte is in the descriptor.
    pub byte_pending: AtomicU32,
    /// Not 0 once a second process has joined. It is never cleared.
    pub shared: AtomicU32,
    /// The member number, plus 1, of the process that submits without compare-and-swap; 0 for none.
    pub submitter: AtomicU32,
    /// Not 0 once the process that made the ring has died.
    pub maker_died: AtomicU32,
    /// The maker's depth (`shared::fences`). Stored before the ring has a number.
    pub maker_depth: AtomicU32,
    /// Not 0 once a member shares its descriptors with another process. Record locks do not conflict between such
    /// processes, so the locks no longer show which members live.
    pub locks_are_blind: AtomicU32,
    /// Number of times that a process woke another process's epoll wait through the socket pair.
    pub kicks: AtomicU32,
    /// Number of times the ring was resized. The only process that uses the ring stores this word, `entries` and
    /// `area`, while `submitter` is set. A process that joins reads them.
    pub generation: AtomicU32,
    /// SQ and CQ entries. Only a reader of the label uses them before the ring was resized.
    pub entries: [AtomicU32; 2],
    /// Offset of the areas in the memfd, once the ring was resized.
    pub area: AtomicU64,
    /// One past the highest member number ever used.
    pub members_end: AtomicU32,
    /// Number of filters that the ring's processes have.
    pub filters: AtomicU32,
    /// CQ tail in the low half, backlog head in the high half. Moving a CQE from the backlog to the CQ changes both,
    /// so both are in one word. If a process dies between two stores, the CQE can be neither duplicated nor lost.
    position: AtomicU64,
    /// The CQ tail counted in 64 bits, as of a recent [`PostLock::advance`]. If a process dies between the two stores
    /// of that function, only `position` is valid.
    cq_total: AtomicU64,
    backlog_tail: AtomicU32,
    /// The member number, plus 1, of each record chunk's owner; 0 for a free chunk.
    pub chunk_owner: [AtomicU32; RECORD_CHUNKS],
    /// The facts about the ring that other processes read.
    pub label: Label,
}

/// One process that uses the ring.
#[repr(C)]
pub struct Member {
    /// 1 from the time a process took this number until a member noticed its death.
    pub joined: AtomicU32,
    /// The member's share of [`Waiters::waiting`], which is subtracted when it has died.
    pub waiting: AtomicU32,
    /// The member's share of [`Waiters::in_futex`].
    pub in_futex: AtomicU32,
    unused: u32,
}

/// A CQE in the backlog.
#[repr(C)]
struct Slot {
    words: [AtomicU64; 4],
}

/// A request that outlived its submitting call. The reason is decision 3 in docs/decisions.
#[repr(C)]
pub struct Record {
    /// The `user_data` of the CQE that a dead owner could not post.
    pub user_data: AtomicU64,
    /// [`RECORD_FREE`], [`RECORD_IN_FLIGHT`], or [`RECORD_IN_CQ`] or [`RECORD_IN_BACKLOG`] with a position. The
    /// owner's Release store pairs with the Acquire load of the process that finds the owner dead.
    pub state: AtomicU64,
}

/// The record holds no request.
pub const RECORD_FREE: u64 = 0;
/// A request without a CQE.
pub const RECORD_IN_FLIGHT: u64 = 1;
/// The state of a request whose CQE was written to the CQ, at the position in the low half. The CQE is published once
/// the CQ's tail has passed that position. Another process finds this state only if the owner died while it held the
/// post lock.
pub const RECORD_IN_CQ: u64 = 2 << 32;
/// The state of a request whose CQE was written to the backlog, at the position in the low half. The CQE is published
/// once the backlog's tail has passed that position.
pub const RECORD_IN_BACKLOG: u64 = 3 << 32;

/// Number of processes that may use a ring at one time.
pub const MEMBERS: u32 = 4096;
/// The number of a process that is no member yet: a forked child that has made no call on the ring.
pub const NO_MEMBER: u32 = u32::MAX;

/// Bytes before the first member. The first members are in the same page, so a ring that is not shared touches only
/// one page.
pub(super) const HEADER_BYTES: usize = 512;
const MEMBER_BYTES: usize = MEMBERS as usize * size_of::<Member>();
const BACKLOG_BYTES: usize = BACKLOG_ENTRIES as usize * size_of::<Slot>();
const RECORD_BYTES: usize = RECORD_CHUNKS * CHUNK_RECORDS * size_of::<Record>();
const BACKLOG_OFFSET: usize = HEADER_BYTES + MEMBER_BYTES;
const RECORD_OFFSET: usize = BACKLOG_OFFSET + BACKLOG_BYTES;
const BYTES: usize = RECORD_OFFSET + RECORD_BYTES;
/// Bytes of the control area, in whole pages.
pub const PAGES_BYTES: usize = BYTES.next_multiple_of(LARGEST_PAGE_BYTES);
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);

/// The base address in a [`Control`] of a process that did not get the area.
const KEPT: usize = 0;

/// A ring's control mapping, in this process.
#[derive(Clone, Copy)]
pub struct Control {
    base: usize,
    /// The file on which every member holds a record lock, see `shared::member`.
    pub lock_file: i32,
    /// This process's number among the ring's members, or [`NO_MEMBER`].
    pub member: u32,
}

impl Control {
    /// Makes a control area in this zeroed shared memory. There is no member yet.
    pub fn at(base: usize) -> Control {
        Control { base, lock_file: memory::NO_FILE, member: NO_MEMBER }
    }

    /// Maps memory for a control area. Only touched pages take memory.
    pub fn new() -> Result<Control, Errno> {
        let base = match memory::map_shared(BYTES) {
            Err(Errno::AGAIN) => {
                let file = memory::sealed_memfd(c"anyring-control", BYTES as u64)?;
                memory::map_range(file.as_fd(), 0, BYTES)?
            }
            answer => answer?,
        };
        Ok(Control::at(base))
    }

    /// Unmaps an area that `new` has mapped. The caller makes sure that no copy of this `Control` is used afterwards.
    pub fn unmap(self) {
        if self.base == KEPT {
            return;
        }
        // SAFETY: `new` mapped the range, and the caller gives up every use of it.
        let _ = unsafe { calls::munmap(self.base as *mut _, BYTES) };
    }

    /// Excludes the area from children that are forked from now on, so that they do not get it.
    pub fn keep_from_children(&self) -> Result<(), Errno> {
        crate::memory::keep_from_children(self.base, BYTES)
    }

    /// Forgets the area, in a forked child that did not get it, since something else may be at its address. The
    /// caller makes sure that the area is not used.
    pub fn mark_kept(&mut self) {
        self.base = KEPT;
    }

    /// Returns the shared words.
    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping starts with a zero-initialised Header, all of whose fields are atomics.
        unsafe { &*(self.base as *const Header) }
    }

    /// Returns member `number`, below [`MEMBERS`].
    pub fn member(&self, number: u32) -> &Member {
        assert!(number < MEMBERS);
        let offset = HEADER_BYTES + number as usize * size_of::<Member>();
        // SAFETY: the number was checked, and the members follow the header.
        unsafe { &*((self.base + offset) as *const Member) }
    }

    fn slot(&self, index: u32) -> &Slot {
        let offset = BACKLOG_OFFSET + (index % BACKLOG_ENTRIES) as usize * size_of::<Slot>();
        // SAFETY: the index is taken modulo the number of slots.
        unsafe { &*((self.base + offset) as *const Slot) }
    }

    /// Returns record `index` of chunk `chunk`.
    pub fn record(&self, chunk: usize, index: usize) -> &Record {
        assert!(chunk < RECORD_CHUNKS && index < CHUNK_RECORDS);
        let offset = RECORD_OFFSET + (chunk * CHUNK_RECORDS + index) * size_of::<Record>();
        // SAFETY: both indices were checked, and the records are the last part of the mapping.
        unsafe { &*((self.base + offset) as *const Record) }
    }

    /// Claims a free chunk of records for this process. `None` if no chunk is free.
    pub fn claim_chunk(&self) -> Option<usize> {
        self.header().chunk_owner.iter().position(|owner| {
            // Relaxed: only this word is claimed.
            owner.compare_exchange(0, self.member + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })
    }

    /// Returns the chunks of records that member `number` owns.
    pub fn chunks_of(&self, number: u32) -> impl Iterator<Item = usize> + '_ {
        let owners = self.header().chunk_owner.iter().enumerate();
        owners.filter(move |(_, owner)| owner.load(Ordering::Relaxed) == number + 1).map(|(chunk, _)| chunk)
    }

    /// Returns the CQ's tail, for a thread that reads it without the post lock, and then takes the lock.
    #[inline]
    pub fn posted(&self) -> u32 {
        self.header().position.load(Ordering::Relaxed) as u32
    }

    /// Returns the number of CQEs in the backlog, and never more than it can hold, whatever another process wrote
    /// into the words.
    #[inline]
    pub fn backlog(&self) -> u32 {
        let header = self.header();
        let head = (header.position.load(Ordering::Relaxed) >> 32) as u32;
        header.backlog_tail.load(Ordering::Relaxed).wrapping_sub(head).min(BACKLOG_ENTRIES)
    }

    /// Takes the post lock. The caller holds the ring's lock, so no other thread of the process wants the post lock.
    #[inline]
    pub fn lock_post(&self) -> PostLock<'_> {
        let header = self.header();
        if header.shared.load(Ordering::Relaxed) == 0 {
            header.poster.store(self.member + 1, Ordering::Relaxed);
            fences::order_mark();
            if header.shared.load(Ordering::Relaxed) == 0 {
                return PostLock { control: self, header, word: &header.poster };
            }
            header.poster.store(0, Ordering::Relaxed);
        }
        self.lock_post_among_others()
    }

    /// Takes the post lock if other processes may post at the same time.
    fn lock_post_among_others(&self) -> PostLock<'_> {
        let header = self.header();
        // Acquire pairs with the Release store in PostLock's drop.
        if header.post_lock.compare_exchange(0, self.member + 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait_for_post_lock();
        }
        PostLock { control: self, header, word: &header.post_lock }
    }

    /// Waits for a process that posts without compare-and-swap, since it has not noticed that the ring is shared.
    pub(crate) fn wait_for_poster(&self) {
        let word = &self.header().poster;
        loop {
            // Acquire pairs with the Release store in PostLock's drop.
            let poster = word.load(Ordering::Acquire);
            if poster == 0 {
                return;
            }
            if !self.lives(poster - 1) {
                let post = self.lock_post_among_others();
                // Acquire: partner is the Release store in this block, by another process that waited.
                if word.load(Ordering::Acquire) == poster {
                    post.repair(poster - 1);
                    word.store(0, Ordering::Release);
                }
                return;
            }
            let _ = Sys::futex_wait(word, poster, Some(50_000));
        }
    }

    /// Waits for the post lock. Spins, since the lock is held for tens of nanoseconds at a time. From time to time,
    /// checks whether the holder still lives.
    #[cold]
    fn wait_for_post_lock(&self) {
        let word = &self.header().post_lock;
        for round in 1u32.. {
            let holder = word.load(Ordering::Relaxed);
            // Acquire pairs with the Release store in PostLock's drop. The lock is taken from a dead holder with that
            // process's last stores. Every step under the lock leaves a state from which the next holder can continue
            // (see `position`).
            let stays = mutated(Mutation::DeadHolderKeepsTheLock);
            assert!(!stays || round < 10_000, "who waits for a dead holder waits for ever");
            let dead = holder != 0 && round % 1000 == 0 && !self.lives(holder - 1) && !stays;
            let free = holder == 0 || dead;
            let taken = free
                && word.compare_exchange(holder, self.member + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if taken {
                if dead {
                    PostLock { control: self, header: self.header(), word }.repair(holder - 1);
                    continue; // dropping the lock released it
                }
                return;
            }
            match round % 100 {
                0 => drop(Sys::futex_wait(word, holder, Some(50_000))),
                _ => crate::sync::spin_loop(),
            }
        }
    }

    /// Removes a registered waiter, which is awake again.
    pub fn leave(&self, by_futex: bool) {
        // The member's counts change before the totals. If the process dies in between, the totals stay too high, which
        // costs needless wakes. The totals are never too low.
        let me = self.member(self.member);
        if by_futex {
            me.in_futex.fetch_sub(1, Ordering::Relaxed);
        }
        me.waiting.fetch_sub(1, Ordering::Relaxed);
        self.header().waiters.leave(1, by_futex.into());
    }
}

/// The right to change the CQ tail, the backlog and the waiters' words. It is held only while CQEs are copied. Its
/// holder makes no system call, no allocation and no wake.
pub struct PostLock<'a> {
    control: &'a Control,
    header: &'a Header,
    /// The word that is locked: `post_lock`, or `poster`.
    word: &'a AtomicU32,
}

impl PostLock<'_> {
    /// Returns the area that contains the lock.
    pub fn control(&self) -> &Control {
        self.control
    }

    /// Returns the true tail of the CQ, independent of the program's writes to ring memory.
    #[inline]
    pub fn cq_tail(&self) -> u32 {
        self.header.position.load(Ordering::Relaxed) as u32
    }

    /// Returns the tail counted in 64 bits: the number of CQEs that the CQ ever got.
    #[inline]
    pub fn cq_total(&self) -> u64 {
        let recent = self.header.cq_total.load(Ordering::Relaxed);
        recent.wrapping_add(self.cq_tail().wrapping_sub(recent as u32).into())
    }

    /// Returns the value of [`PostLock::cq_total`] at which the CQ tail is `position`, which is less than 2^31 CQEs
    /// away.
    pub fn total_at(&self, position: u32) -> u64 {
        let distance = position.wrapping_sub(self.cq_tail()) as i32;
        self.cq_total().saturating_add_signed(distance.into())
    }

    /// Returns [`Control::backlog`], which does not change while the lock is held.
    #[inline]
    pub fn backlog(&self) -> u32 {
        self.control.backlog()
    }

    /// Advances the CQ tail and drops `taken` CQEs from the front of the backlog, in one store.
    #[inline]
    pub fn advance(&mut self, cq_tail: u32, taken: u32) {
        // Counted from the last total, as in `cq_total`: the tail may have advanced since, but by less than 2^32.
        let recent = self.header.cq_total.load(Ordering::Relaxed);
        let total = recent.wrapping_add(cq_tail.wrapping_sub(recent as u32).into());
        let head = (self.header.position.load(Ordering::Relaxed) >> 32) as u32;
        let head = u64::from(head.wrapping_add(taken));
        // Release pairs with the Acquire of the next lock holder, should this holder die before it unlocks.
        self.header.position.store(head << 32 | u64::from(cq_tail), Ordering::Release);
        self.header.cq_total.store(total, Ordering::Relaxed);
    }

    /// Returns the CQE that is `ahead` places after the front of the backlog.
    pub fn backlog_entry(&self, ahead: u32) -> (Cqe, [u64; 2]) {
        let head = (self.header.position.load(Ordering::Relaxed) >> 32) as u32;
        let words = &self.control.slot(head.wrapping_add(ahead)).words;
        let word = |i: usize| words[i].load(Ordering::Relaxed);
        (Cqe { user_data: word(0), res: word(1) as i32, flags: (word(1) >> 32) as u32 }, [word(2), word(3)])
    }

    /// Puts a CQE at the end of the backlog. False if the backlog is full.
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
        // Release pairs with the Acquire of the next lock holder, should this holder die before it unlocks.
        self.header.backlog_tail.store(tail.wrapping_add(1), Ordering::Release);
        true
    }

    /// Returns the position at which the next CQE goes into the backlog.
    pub fn backlog_tail(&self) -> u32 {
        self.header.backlog_tail.load(Ordering::Relaxed)
    }

    /// Repairs the state after member `dead` died while it held the lock. Its records without a published CQE are in
    /// flight again.
    fn repair(&self, dead: u32) {
        let (cq_tail, backlog_tail) = (self.cq_tail(), self.backlog_tail());
        for chunk in self.control.chunks_of(dead) {
            for index in 0..CHUNK_RECORDS {
                let state = &self.control.record(chunk, index).state;
                let seen = state.load(Ordering::Acquire); // partner: the Release store by the owner
                let end = match seen & !u64::from(u32::MAX) {
                    RECORD_IN_CQ => cq_tail,
                    RECORD_IN_BACKLOG => backlog_tail,
                    _ => continue,
                };
                let published = (end.wrapping_sub(seen as u32) as i32) > 0;
                let now = if published { RECORD_FREE } else { RECORD_IN_FLIGHT };
                state.store(now, Ordering::Release); // partner: the Acquire load of the process that reaps
            }
        }
    }

    /// Returns the waiters' words.
    #[inline]
    pub fn waiters(&self) -> &Waiters {
        &self.header.waiters
    }

    /// Registers a waiter of this process: see [`Waiters::register`].
    pub fn register_waiter(&mut self, target: u64, by_futex: bool) -> u32 {
        let sequence = self.header.waiters.register(target, by_futex);
        // After the totals, as in `leave`.
        let me = self.control.member(self.control.member);
        me.waiting.fetch_add(1, Ordering::Relaxed);
        if by_futex {
            me.in_futex.fetch_add(1, Ordering::Relaxed);
        }
        sequence
    }
}

impl Drop for PostLock<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the Acquire of the next holder. Sleepers sleep for 50 us at most, so no wake is needed.
        self.word.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a control area whose lock file is a memfd, joined as member `number`.
    fn joined(number: u32) -> Control {
        let file = rustix::fs::memfd_create("locks", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd_create");
        let mut control = Control::new().expect("a mapping");
        control.lock_file = rustix::fd::IntoRawFd::into_raw_fd(file);
        control.member = number;
        control
    }

    fn end(control: Control) {
        control.unmap();
        Sys::close(control.lock_file);
    }

    #[test]
    fn a_dead_holder_is_replaced_and_what_it_did_not_publish_is_in_flight() {
        let control = joined(0);
        control.header().shared.store(1, Ordering::Relaxed);
        control.header().post_lock.store(7, Ordering::Relaxed); // member 6, whose lock is free
        control.header().chunk_owner[3].store(7, Ordering::Relaxed);
        control.header().position.store(5, Ordering::Relaxed);
        let states = [RECORD_IN_FLIGHT, RECORD_IN_CQ | 4, RECORD_IN_CQ | 5, RECORD_IN_BACKLOG, RECORD_FREE];
        for (index, state) in states.into_iter().enumerate() {
            control.record(3, index).state.store(state, Ordering::Relaxed);
        }
        assert_eq!(control.lock_post().cq_tail(), 5);
        let repaired = [RECORD_IN_FLIGHT, RECORD_FREE, RECORD_IN_FLIGHT, RECORD_IN_FLIGHT, RECORD_FREE];
        for (index, state) in repaired.into_iter().enumerate() {
            assert_eq!(control.record(3, index).state.load(Ordering::Relaxed), state, "record {index}");
        }
        end(control);
    }

    #[test]
    fn a_cqe_of_a_dead_maker_is_in_flight_for_the_first_that_joins() {
        let control = joined(1);
        control.header().poster.store(1, Ordering::Relaxed); // member 0, whose lock is free
        control.header().chunk_owner[3].store(1, Ordering::Relaxed);
        control.record(3, 0).state.store(RECORD_IN_CQ, Ordering::Relaxed);
        control.header().shared.store(1, Ordering::Relaxed);
        control.wait_for_poster();
        assert_eq!(control.record(3, 0).state.load(Ordering::Relaxed), RECORD_IN_FLIGHT);
        assert_eq!(control.lock_post().word.as_ptr(), control.header().post_lock.as_ptr());
        end(control);
    }

    #[test]
    fn the_backlog_keeps_order_and_is_bounded() {
        let control = joined(0);
        let mut post = control.lock_post();
        for n in 0..BACKLOG_ENTRIES {
            assert!(post.push_backlog(Cqe { user_data: n.into(), res: -(n as i32), flags: n }, [1, 2]));
        }
        assert!(!post.push_backlog(Cqe::default(), [0; 2]));
        assert_eq!(post.backlog_entry(7), (Cqe { user_data: 7, res: -7, flags: 7 }, [1, 2]));
        post.advance(5, 7);
        assert_eq!((post.cq_tail(), post.backlog()), (5, BACKLOG_ENTRIES - 7));
        assert_eq!(post.backlog_entry(0).0.user_data, 7);
        drop(post);
        end(control);
    }

    #[test]
    fn the_total_goes_on_where_the_tail_comes_round() {
        const ROUND: u64 = 1 << 32;
        let control = joined(0);
        let mut post = control.lock_post();
        for tail in [5, 1 << 31, u32::MAX - 2] {
            post.advance(tail, 0);
            assert_eq!((post.cq_tail(), post.cq_total()), (tail, tail.into()));
        }
        assert_eq!((post.total_at(u32::MAX), post.total_at(3)), (ROUND - 1, ROUND + 3));
        post.advance(2, 0);
        assert_eq!((post.cq_tail(), post.cq_total()), (2, ROUND + 2));
        assert_eq!((post.total_at(u32::MAX), post.total_at(3)), (ROUND - 1, ROUND + 3));
        // The process that advanced it died between the two stores.
        control.header().position.store(9, Ordering::Relaxed);
        assert_eq!(post.cq_total(), ROUND + 9);
        post.advance(1 << 31, 0);
        assert_eq!(post.cq_total(), ROUND + (1 << 31));
        drop(post);
        end(control);
    }
}
