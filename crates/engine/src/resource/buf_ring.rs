//! Buffers that the program provides for receives and reads to choose from: IORING_OP_PROVIDE_BUFFERS and
//! IORING_REGISTER_PBUF_RING. Source: io_uring_register(2), and io_uring/kbuf.c.
//!
//! A group is one of the engine's lists (provided buffers) or a ring in shared memory (buffer ring). The program
//! writes the ring's entries and tail, and the engine owns its head. Ring memory belongs to the program, or is shared
//! memory that the program may have mapped, too. So only guarded accessors touch it. Everything is part of a ring's
//! state and changes under the ring's lock.

use crate::memory::{Area, SharedArea};
use crate::mutation::{mutated, Mutation};
use crate::os::arch::page_bytes;
use crate::os::{check_writable, user_read, user_write, version, GuardedWords};
use crate::Errno;
use anyring_abi::{IORING_CQE_BUFFER_SHIFT, IORING_CQE_F_BUFFER, IORING_CQE_F_BUF_MORE, MAX_RW_COUNT};
use std::collections::{BTreeMap, VecDeque};

/// One more than the most buffers of a group (`MAX_BIDS_PER_BGID`).
pub const MAX_BUFFERS: u32 = 1 << 16;
/// The most buffers of a bundle (`PEEK_MAX_IMPORT`). `UIO_MAXIOV` for a bundle whose length is not known.
const BUNDLE_MAX: usize = 256;
const IOVECS_MAX: u16 = libc::UIO_MAXIOV as u16;
/// Bytes of `struct io_uring_buf`: address (8), length (4), id (2), padding (2).
const ENTRY_BYTES: u64 = 16;
/// Offset in the first entry of the word whose upper half is the ring's tail.
const TAIL_WORD: u64 = 12;

/// The groups of a ring, by number.
#[derive(Default)]
pub struct Groups(BTreeMap<u16, Group>);

enum Group {
    Listed(VecDeque<Listed>),
    Ring(BufferRing),
}

/// A provided buffer, in a list.
#[derive(Debug, Clone, Copy)]
pub struct Listed {
    /// The buffer's address in program memory.
    pub address: u64,
    /// The buffer's length.
    pub bytes: u32,
    /// The buffer's id.
    pub id: u16,
}

struct BufferRing {
    address: u64,
    mask: u16,
    /// Index of the next entry to use. It counts on beyond the number of entries.
    head: u16,
    /// True if buffers are used up piece by piece (`IOU_PBUF_RING_INC`).
    incremental: bool,
    /// The fewest bytes that a piece may leave. With fewer, the buffer counts as used up (`min_left`).
    min_left: u32,
    /// The ring's memory, if the engine made it (`IOU_PBUF_RING_MMAP`).
    area: Option<SharedArea>,
}

/// A chosen buffer, or several that follow each other on their ring.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// Number of bytes of these buffers that may be used.
    pub bytes: usize,
    /// True if the buffer is from a list, not from a ring.
    pub listed: bool,
    /// True if the used part has been taken off its ring already, whatever the request's result will be.
    pub committed: bool,
    /// True if the group has no other buffer for now.
    pub last: bool,
    /// True if a buffer was left out, or cut, because there is more room than was asked for.
    pub partial: bool,
    /// The bytes and buffers taken off the ring. `head` is the ring's head after that.
    consumed: (usize, u16),
    head: u16,
    /// The address of the first buffer. `id` and `whole_bytes` are its id and own length.
    address: u64,
    id: u16,
    whole_bytes: u32,
    /// True if the ring continues with the same buffer.
    more: bool,
}

impl Held {
    fn new(address: u64, id: u16, whole_bytes: u32) -> Held {
        Held {
            bytes: 0,
            listed: false,
            committed: false,
            last: false,
            partial: false,
            consumed: (0, 0),
            head: 0,
            address,
            id,
            whole_bytes,
            more: false,
        }
    }

    /// Returns the flags by which a CQE names the buffer, or the first of several.
    pub fn cqe_flags(&self) -> u32 {
        let more = if self.more { IORING_CQE_F_BUF_MORE } else { 0 };
        let id = self.id ^ u16::from(mutated(Mutation::NamesAnotherBuffer));
        IORING_CQE_F_BUFFER | more | u32::from(id) << IORING_CQE_BUFFER_SHIFT
    }
}

/// The way in which buffers are chosen.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// The most bytes to use. 0 for as many as the buffers have.
    pub wanted: usize,
    /// True for a send, which takes all of a provided buffer (`io_send_select_buffer` in io_uring/net.c).
    pub sends: bool,
    /// True for a bundle, which takes as many buffers as `wanted` needs.
    pub bundle: bool,
    /// Number of buffers that a bundle of unknown length took before, and takes again.
    pub before: u16,
}

impl Groups {
    /// True if the group has a buffer to choose.
    pub fn has_buffers(&self, group: u16) -> bool {
        self.0.get(&group).is_some_and(|group| match group {
            Group::Listed(list) => !list.is_empty(),
            Group::Ring(ring) => ring.tail().is_ok_and(|tail| tail != ring.head),
        })
    }

    /// True if the group is a list of provided buffers.
    pub fn is_listed(&self, group: u16) -> bool {
        matches!(self.0.get(&group), Some(Group::Listed(_)))
    }

    /// Chooses the next buffer of `group`, or several. `ranges` gets the parts that may be used.
    ///
    /// # Errors
    /// NOBUFS if there is no buffer, NOENT if a send or bundle names no group, FAULT if the ring's memory cannot be
    /// read.
    pub fn choose(&mut self, group: u16, choice: Choice, ranges: &mut Vec<[usize; 2]>) -> Result<Held, Errno> {
        ranges.clear();
        let Choice { wanted, sends, bundle, .. } = choice;
        let missing = if sends || bundle { Errno::NOENT } else { Errno::NOBUFS };
        match self.0.get_mut(&group).ok_or(missing)? {
            Group::Listed(list) => {
                let Listed { address, bytes, id } = list.pop_front().ok_or(Errno::NOBUFS)?;
                let whole = bytes as usize;
                let used = if wanted == 0 || sends { whole } else { wanted.min(whole) };
                ranges.push([address as usize, used]);
                Ok(Held { bytes: used, listed: true, last: list.is_empty(), ..Held::new(address, id, bytes) })
            }
            Group::Ring(ring) => ring.peek(choice, ranges),
        }
    }

    /// Takes the first `count` buffers off their ring, or the `bytes` used of an incremental ring's buffers. A transfer
    /// that was continued calls this again with larger numbers. Then only the difference is taken, and only if no other
    /// request has taken buffers since.
    pub fn commit(&mut self, group: u16, held: &mut Held, bytes: usize, count: u16) {
        if let (false, Some(Group::Ring(ring))) = (held.listed, self.0.get_mut(&group)) {
            let (consumed_bytes, consumed_count) = held.consumed;
            let further = (bytes.saturating_sub(consumed_bytes), count.saturating_sub(consumed_count));
            let goes_on = if ring.incremental { further.0 != 0 } else { further.1 != 0 };
            if !held.committed || (goes_on && ring.head == held.head) {
                held.more = !ring.advance(further.0, further.1);
                held.consumed = (consumed_bytes + further.0, consumed_count + further.1);
                held.head = ring.head;
            }
        }
        held.committed = true;
    }

    /// Undoes the [`commit`](Self::commit) of a whole buffer, unless another request has taken a buffer since.
    pub fn uncommit(&mut self, group: u16, held: &mut Held) {
        if !held.committed || held.listed {
            return;
        }
        let Some(Group::Ring(ring)) = self.0.get_mut(&group).filter(|_| held.consumed.1 == 1) else { return };
        if ring.head == held.head && ring.give_back(held) {
            (held.committed, held.consumed) = (false, (0, 0));
        }
    }

    /// Gives back a buffer that was not used. Does nothing for a buffer of a ring, since it has not been taken off.
    pub fn give_back(&mut self, group: u16, held: Held) {
        if mutated(Mutation::LosesABuffer) {
            return;
        }
        if let (true, Some(Group::Listed(list))) = (held.listed, self.0.get_mut(&group)) {
            list.push_front(Listed { address: held.address, bytes: held.whole_bytes, id: held.id });
        }
    }

    /// Serves IORING_OP_PROVIDE_BUFFERS: adds `count` buffers of the length of `first`, one after the other. Fails
    /// with `OVERFLOW` if the group is full from the start, which it never is from Linux 7.2 on. Fails with `INVAL`
    /// if the group is a ring.
    pub fn provide(&mut self, group: u16, first: Listed, count: u32) -> Result<u32, Errno> {
        let Group::Listed(list) = self.0.entry(group).or_insert_with(|| Group::Listed(VecDeque::new())) else {
            return Err(Errno::INVAL);
        };
        for place in 0..count {
            if list.len() == usize::from(u16::MAX) && !version::answers_as_7_3() {
                return if place == 0 { Err(Errno::OVERFLOW) } else { Ok(0) };
            }
            if list.try_reserve(1).is_err() {
                return if place == 0 { Err(Errno::NOMEM) } else { Ok(0) };
            }
            list.push_back(Listed {
                address: first.address + u64::from(first.bytes) * u64::from(place),
                bytes: first.bytes.min(MAX_RW_COUNT as u32),
                id: first.id.wrapping_add(place as u16),
            });
        }
        Ok(0)
    }

    /// Serves IORING_OP_REMOVE_BUFFERS: removes up to `count` buffers. Returns the number removed.
    pub fn remove(&mut self, group: u16, count: u32) -> Result<u32, Errno> {
        match self.0.get_mut(&group).ok_or(Errno::NOENT)? {
            Group::Ring(_) => Err(Errno::INVAL),
            Group::Listed(list) => {
                let removed = list.len().min(count as usize);
                list.drain(..removed);
                Ok(removed as u32)
            }
        }
    }

    /// Serves IORING_REGISTER_PBUF_RING: makes `group` a ring of `entries` at `address`. Without an address (`None`),
    /// the engine makes the memory, and the program maps it. An `incremental` ring has its `min_left`.
    ///
    /// # Errors
    /// EXIST if the group has buffers already, INVAL for a bad size or alignment, FAULT for bad memory.
    pub fn register(
        &mut self,
        group: u16,
        address: Option<u64>,
        entries: u32,
        incremental: Option<u32>,
    ) -> Result<u32, Errno> {
        if !entries.is_power_of_two() || entries >= MAX_BUFFERS {
            return Err(Errno::INVAL);
        }
        match self.0.get(&group) {
            Some(Group::Ring(_)) => return Err(Errno::EXIST),
            Some(Group::Listed(list)) if !list.is_empty() => return Err(Errno::EXIST),
            _ => {}
        }
        crate::alloc::reserve()?;
        let bytes = (u64::from(entries) * ENTRY_BYTES).next_multiple_of(page_bytes() as u64);
        let area = match address {
            None => Some(SharedArea::create(c"anyring-buffers", bytes as usize)?),
            Some(address) => {
                check_memory(address, bytes)?;
                None
            }
        };
        let address = area.as_ref().map_or(address.unwrap_or(0), |area| area.address() as u64);
        let ring = BufferRing {
            address,
            mask: (entries - 1) as u16,
            head: 0,
            incremental: incremental.is_some(),
            min_left: incremental.unwrap_or(0).max(1),
            area,
        };
        self.0.insert(group, Group::Ring(ring));
        Ok(0)
    }

    /// Serves IORING_UNREGISTER_PBUF_RING.
    pub fn unregister(&mut self, group: u16) -> Result<u32, Errno> {
        self.ring(group)?;
        self.0.remove(&group);
        Ok(0)
    }

    /// Serves IORING_REGISTER_PBUF_STATUS: returns the ring's head.
    pub fn head(&self, group: u16) -> Result<u16, Errno> {
        self.ring(group).map(|ring| ring.head)
    }

    /// True if buffers of the group are used up piece by piece.
    pub fn is_incremental(&self, group: u16) -> bool {
        self.ring(group).is_ok_and(|ring| ring.incremental)
    }

    /// Returns the memory of a group's ring, if the engine made that memory.
    pub fn area(&self, group: u16) -> Option<Area> {
        self.ring(group).ok()?.area.as_ref().map(SharedArea::area)
    }

    fn ring(&self, group: u16) -> Result<&BufferRing, Errno> {
        match self.0.get(&group).ok_or(Errno::NOENT)? {
            Group::Ring(ring) => Ok(ring),
            Group::Listed(_) => Err(Errno::INVAL),
        }
    }
}

impl BufferRing {
    /// Reads the tail. As strong as an Acquire load, which pairs with the program's release store of the tail.
    fn tail(&self) -> Result<u16, Errno> {
        Ok((GuardedWords::load((self.address + TAIL_WORD) as usize)? >> 16) as u16)
    }

    fn entry(&self, index: u16) -> u64 {
        self.address + u64::from(index & self.mask) * ENTRY_BYTES
    }

    /// Reads the address, length and id in the `index`th entry.
    fn read(&self, index: u16) -> Result<(u64, u32, u16), Errno> {
        let [address, rest] = user_read::<[u64; 2]>(self.entry(index))?;
        Ok((address, rest as u32, (rest >> 32) as u16))
    }

    /// Chooses the next buffers, without taking them off the ring. Source: `io_ring_buffers_peek` and
    /// `io_ring_buffer_select` in io_uring/kbuf.c.
    fn peek(&self, choice: Choice, ranges: &mut Vec<[usize; 2]>) -> Result<Held, Errno> {
        let Choice { wanted, sends, bundle, before } = choice;
        let tail = self.tail()?;
        let mut available = tail.wrapping_sub(self.head).min(IOVECS_MAX);
        if available == 0 {
            return Err(Errno::NOBUFS);
        }
        let (address, whole_bytes, id) = self.read(self.head)?;
        let mut held = Held::new(address, id, whole_bytes);
        if wanted != 0 && (sends || bundle) {
            if whole_bytes == 0 {
                return Err(Errno::NOBUFS);
            }
            let needed = wanted.div_ceil(whole_bytes as usize).min(BUNDLE_MAX);
            available = available.min(needed as u16);
        }
        if !bundle {
            available = 1;
        } else if wanted == 0 {
            available = available.min(before.max(1));
        }
        let mut room = if wanted == 0 { usize::MAX } else { wanted };
        let mut next = self.head;
        while available != 0 && room != 0 {
            let (address, bytes, _) = self.read(next)?;
            let used = room.min(bytes as usize);
            if used < bytes as usize && bundle && !self.incremental {
                held.partial = true;
                if !ranges.is_empty() {
                    break;
                }
            }
            ranges.push([address as usize, used]);
            held.bytes += used;
            room -= used;
            if room != 0 {
                next = next.wrapping_add(1);
                available -= 1;
            }
        }
        held.last = next == tail;
        Ok(held)
    }

    /// Moves the head back to a buffer that was used up. False if that entry holds another buffer by now.
    fn give_back(&mut self, held: &Held) -> bool {
        let before = self.head.wrapping_sub(1);
        let whole = if self.incremental { 0 } else { held.whole_bytes };
        if self.read(before) != Ok((held.address, whole, held.id)) {
            return false;
        }
        if self.incremental && user_write(self.entry(before) + 8, &held.whole_bytes).is_err() {
            return false;
        }
        self.head = before;
        true
    }

    /// Moves the head on after `bytes` of `count` buffers were used. False if the buffer at the head has enough bytes
    /// left. Source: `io_kbuf_commit` in io_uring/kbuf.c.
    fn advance(&mut self, bytes: usize, count: u16) -> bool {
        if !self.incremental {
            self.head = self.head.wrapping_add(count);
            return true;
        }
        if bytes == 0 {
            return false; // for example at the end of a file: all of the buffer is left
        }
        let mut left = bytes;
        while left > 0 {
            let entry = self.entry(self.head);
            let Ok((address, bytes, _)) = self.read(self.head) else { return false };
            let step = bytes.min(left.min(u32::MAX as usize) as u32);
            let remaining = bytes - step;
            let length = entry + 8;
            if remaining >= self.min_left || step == 0 {
                // If the program has unmapped its ring, both stores fail and nobody misses them.
                let _ = user_write(entry, &address.wrapping_add(u64::from(step)));
                let _ = user_write(length, &remaining);
                return false;
            }
            let _ = user_write(length, &0u32);
            self.head = self.head.wrapping_add(1);
            left -= step as usize;
        }
        true
    }
}

/// Makes the checks that the kernel makes when it pins the ring. Source: `io_create_region` in io_uring/memmap.c.
fn check_memory(address: u64, bytes: u64) -> Result<(), Errno> {
    if address == 0 {
        return Err(Errno::FAULT);
    }
    if !address.is_multiple_of(page_bytes() as u64) {
        return Err(Errno::INVAL);
    }
    check_writable(address, bytes)
}
