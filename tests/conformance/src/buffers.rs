//! A buffer ring (IORING_REGISTER_PBUF_RING) as a program keeps one: entries in shared memory, and their buffers.

use crate::ring::Ring;
use crate::sqe::{prep, SqeFields};
use crate::sys::pages;
use anyring_abi::*;
use std::sync::atomic::{AtomicU16, Ordering};

/// `struct io_uring_buf_reg`: address, entries, group, flags, the least that is left.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Registration {
    /// The address of the entries.
    pub ring_addr: u64,
    /// The number of entries, a power of two.
    pub ring_entries: u32,
    /// The group's number.
    pub group: u16,
    /// `IOU_PBUF_RING_*`.
    pub flags: u16,
    /// The fewest bytes that may be left of an incremental buffer.
    pub min_left: u32,
    /// Zero.
    pub resv: [u32; 5],
}

/// `struct io_uring_buf_status`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Status {
    /// The group's number.
    pub group: u32,
    /// The kernel's head of the group.
    pub head: u32,
    /// Zero.
    pub resv: [u32; 8],
}

/// `struct io_uring_buf`; the first one's last field is the ring's tail.
#[repr(C)]
struct Entry {
    addr: u64,
    len: u32,
    id: u16,
    resv: u16,
}

const TAIL_OFFSET: usize = 14;

/// A registered buffer ring whose buffers have one size; buffer `id` begins at `id * bytes`.
pub struct BufferRing {
    /// The address of the entries.
    pub address: usize,
    /// The number of entries.
    pub entries: u16,
    /// The group's number.
    pub group: u16,
    /// Bytes of each buffer.
    pub bytes: usize,
    storage: Vec<u8>,
    tail: u16,
}

impl BufferRing {
    /// A group in the case's own memory, with `flags` (`IOU_PBUF_RING_*`) and no buffer in it yet.
    pub fn new(ring: &Ring, group: u16, entries: u16, bytes: usize, flags: u16) -> BufferRing {
        let address = pages((usize::from(entries) * 16).div_ceil(4096)).as_mut_ptr() as usize;
        let registration = Registration {
            ring_addr: address as u64,
            ring_entries: entries.into(),
            group,
            flags,
            ..Registration::default()
        };
        assert_eq!(register(ring, &registration), 0, "IORING_REGISTER_PBUF_RING");
        BufferRing::at(address, group, entries, bytes)
    }

    /// A group whose entries are already registered at `address`.
    pub fn at(address: usize, group: u16, entries: u16, bytes: usize) -> BufferRing {
        BufferRing { address, entries, group, bytes, storage: vec![0; usize::from(entries) * bytes], tail: 0 }
    }

    /// A group that holds all its buffers.
    pub fn filled(ring: &Ring, group: u16, entries: u16, bytes: usize) -> BufferRing {
        let mut buffers = BufferRing::new(ring, group, entries, bytes, 0);
        (0..entries).for_each(|id| buffers.give(id));
        buffers
    }

    /// Adds buffer `id` at the tail.
    pub fn give(&mut self, id: u16) {
        let address = self.storage.as_mut_ptr() as u64 + u64::from(id) * self.bytes as u64;
        self.give_at(id, address, self.bytes as u32);
    }

    /// Adds these bytes as buffer `id` at the tail.
    pub fn give_at(&mut self, id: u16, addr: u64, len: u32) {
        let slot = usize::from(self.tail & (self.entries - 1));
        let entry = (self.address + slot * 16) as *mut Entry;
        // SAFETY: the slot lies in the registered entries, which live as long as the case; `resv` of the first one is
        // the tail, and is left alone.
        unsafe {
            (*entry).addr = addr;
            (*entry).len = len;
            (*entry).id = id;
        }
        self.tail = self.tail.wrapping_add(1);
        self.set_tail(self.tail);
    }

    /// Stores the tail.
    pub fn set_tail(&self, tail: u16) {
        // SAFETY: the word lies in the entries, aligned, and is shared with the kernel as an atomic. Release pairs with
        // the kernel's acquire: the entries before it are written.
        unsafe { AtomicU16::from_ptr((self.address + TAIL_OFFSET) as *mut u16) }.store(tail, Ordering::Release);
    }

    /// The first `count` bytes of buffer `id`.
    pub fn content(&self, id: u16, count: usize) -> &[u8] {
        let start = usize::from(id) * self.bytes;
        std::hint::black_box(&self.storage)[start..][..count].as_ref()
    }

    /// All bytes of buffer `id`, to be sent.
    pub fn content_mut(&mut self, id: u16) -> &mut [u8] {
        let start = usize::from(id) * self.bytes;
        &mut self.storage[start..start + self.bytes]
    }

    /// Address and length in the entry at `slot`.
    pub fn entry(&self, slot: u16) -> (u64, u32) {
        let entry = (self.address + usize::from(slot) * 16) as *const Entry;
        // SAFETY: as in `give_at`; the kernel may have written both fields, in a call that has returned.
        unsafe { ((&raw const (*entry).addr).read_volatile(), (&raw const (*entry).len).read_volatile()) }
    }

    /// Returns the address of a buffer.
    pub fn start(&self, id: u16) -> u64 {
        self.storage.as_ptr() as u64 + u64::from(id) * self.bytes as u64
    }

    /// The kernel's head of this group (IORING_REGISTER_PBUF_STATUS).
    pub fn head(&self, ring: &Ring) -> u32 {
        let mut status = Status { group: self.group.into(), ..Status::default() };
        assert_eq!(ring.register(IORING_REGISTER_PBUF_STATUS, &raw mut status as usize, 1), 0);
        status.head
    }
}

/// IORING_REGISTER_PBUF_RING.
pub fn register(ring: &Ring, registration: &Registration) -> isize {
    ring.register(IORING_REGISTER_PBUF_RING, std::ptr::from_ref(registration) as usize, 1)
}

/// IORING_UNREGISTER_PBUF_RING.
pub fn unregister(ring: &Ring, group: u16) -> isize {
    let registration = Registration { group, ..Registration::default() };
    ring.register(IORING_UNREGISTER_PBUF_RING, &raw const registration as usize, 1)
}

/// The buffer that a CQE names, if it names one.
pub fn buffer_of(cqe: &Cqe) -> Option<u16> {
    (cqe.flags & IORING_CQE_F_BUFFER != 0).then_some((cqe.flags >> IORING_CQE_BUFFER_SHIFT) as u16)
}

/// READ of at most `len` bytes into a buffer of `group`.
pub fn read_select(fd: i32, group: u16, len: u32) -> Sqe {
    prep(Opcode::Read, fd, 0, len, 0).with(IOSQE_BUFFER_SELECT).buffer(group)
}

/// RECV of at most `len` bytes into a buffer of `group`.
pub fn recv_select(fd: i32, group: u16, len: u32) -> Sqe {
    prep(Opcode::Recv, fd, 0, len, 0).with(IOSQE_BUFFER_SELECT).buffer(group)
}

/// Multishot RECV of at most `len` bytes at a time into buffers of group 1.
pub fn recv_multishot(fd: i32, len: u32) -> Sqe {
    recv_select(fd, 1, len).ioprio(IORING_RECV_MULTISHOT as u16)
}

/// A last CQE's result and buffer, without IORING_CQE_F_SOCK_NONEMPTY, which is a hint.
pub fn last_buffer(cqe: &Cqe) -> (i32, Option<u16>) {
    assert_eq!(cqe.flags & (IORING_CQE_F_MORE | IORING_CQE_F_BUF_MORE), 0, "{cqe:?}");
    (cqe.res, buffer_of(cqe))
}

/// Submits `sqe` and returns its result.
pub fn run_taking(ring: &mut Ring, sqe: Sqe) -> (i32, Option<u16>) {
    ring.go(sqe);
    last_buffer(&ring.wait())
}

/// Returns a CQE's result, whether more follows, and its buffer. IORING_CQE_F_SOCK_NONEMPTY is a hint, and ignored.
pub fn shot(cqe: &Cqe) -> (i32, bool, Option<u16>) {
    (cqe.res, cqe.flags & IORING_CQE_F_MORE != 0, buffer_of(cqe))
}

/// Waits for the next CQE, and returns it as [`shot`] does.
pub fn next_shot(ring: &mut Ring) -> (i32, bool, Option<u16>) {
    shot(&ring.wait())
}
