//! A ring as a program uses it, over one of three doors: liburing's functions by symbol, libc's `syscall()`, or the
//! worker's own system call instructions. The inline functions of liburing's header are written here as a compiler
//! would inline them.
//!
//! One thread owns a [`Ring`]. It shares the ring's memory with the ring's server, the kernel or the engine.

pub mod calls;
mod liburing;

use crate::outcome::{refused, Outcome, Stop};
use anyring_abi::{Cqe, Opcode, Params, Sqe};
use anyring_lab::message::{Door, Proof};
use liburing::IoUring;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// The functions for a ring's calls.
#[derive(Clone, Copy)]
enum Way {
    Liburing(liburing::Functions),
    Calls(calls::Calls),
}

/// A ring, torn down when dropped.
pub struct Ring {
    ring: Box<IoUring>,
    way: Way,
    /// Number of CQEs reaped, and of those with a negative result.
    completions: u64,
    negative: u64,
}

impl Ring {
    /// Makes a ring by io_uring_queue_init(3) with these setup flags, and a CQ of four times the SQ.
    pub fn new(door: Door, entries: u32, flags: u32) -> Outcome<Ring> {
        let params = Params {
            flags: flags | anyring_abi::IORING_SETUP_CQSIZE,
            cq_entries: entries * 4,
            ..Params::default()
        };
        // SAFETY: integers and pointers, for which zeroes are values.
        let mut ring: Box<IoUring> = Box::new(unsafe { std::mem::zeroed() });
        let (way, answer) = match door {
            Door::Liburing => {
                let functions = liburing::Functions::open().map_err(Stop::Missing)?;
                (Way::Liburing(functions), functions.queue_init(entries, &mut ring, params))
            }
            Door::Libc | Door::Raw => {
                let calls = calls::Calls { raw: door == Door::Raw };
                (Way::Calls(calls), calls.queue_init(entries, &mut ring, params))
            }
        };
        match answer {
            0 => Ok(Ring { ring, way, completions: 0, negative: 0 }),
            error => Err(refused("io_uring_queue_init", -error)),
        }
    }

    /// Returns the ring's descriptor.
    pub fn fd(&self) -> i32 {
        self.ring.ring_fd
    }

    /// Returns the proof of its server, and the counts.
    pub fn proof(&self) -> Proof {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", self.fd()));
        Proof {
            provider: match self.way {
                Way::Liburing(functions) => Some(functions.provider()),
                Way::Calls(calls) => calls.provider(),
            },
            ring: link.ok().map(|link| link.to_string_lossy().into_owned()),
            completions: self.completions,
            negative: self.negative,
        }
    }

    /// Fills an SQE of io_uring_get_sqe(3) with these fields; the others are cleared.
    #[inline]
    pub fn push(&mut self, sqe: Sqe) -> Outcome<()> {
        let sq = &mut self.ring.sq;
        // Relaxed, as in the header: without SQPOLL the head only moves in this thread's own submit call.
        // SAFETY: a pointer into the mapped ring, aligned, and shared with the server, hence the atomic.
        let head = unsafe { AtomicU32::from_ptr(sq.khead) }.load(Ordering::Relaxed);
        let next = sq.sqe_tail.wrapping_add(1);
        if next.wrapping_sub(head) > sq.ring_entries {
            return Err("io_uring_get_sqe found the SQ full".into());
        }
        // SAFETY: masked, so inside the mapped SQE array; the server reads it in the submit call only, which needs the
        // ring borrowed again.
        unsafe { sq.sqes.add((sq.sqe_tail & sq.ring_mask) as usize).write(sqe) };
        sq.sqe_tail = next;
        Ok(())
    }

    /// Submits by io_uring_submit(3), and checks that all pending SQEs were submitted.
    #[inline]
    pub fn submit(&mut self) -> Outcome<()> {
        self.submit_and_wait(0)
    }

    /// io_uring_submit_and_wait(3).
    #[inline]
    pub fn submit_and_wait(&mut self, wait: u32) -> Outcome<()> {
        let sq = &self.ring.sq;
        let pending = sq.sqe_tail.wrapping_sub(sq.sqe_head);
        let answer = match self.way {
            Way::Liburing(functions) => functions.submit_and_wait(&mut self.ring, wait),
            Way::Calls(calls) => calls.submit_and_wait(&mut self.ring, wait),
        };
        match answer == pending as i32 {
            true => Ok(()),
            false => Err(Stop::Failed(format!("submitting {pending} SQEs answered {answer}"))),
        }
    }

    /// Takes a CQE, if there is one: io_uring_peek_cqe(3), a copy, and io_uring_cqe_seen(3).
    #[inline]
    pub fn peek_cqe(&mut self) -> Option<Cqe> {
        let cq = &self.ring.cq;
        // SAFETY: as in `push`.
        let (head, tail) = unsafe { (AtomicU32::from_ptr(cq.khead), AtomicU32::from_ptr(cq.ktail)) };
        let seen = head.load(Ordering::Relaxed); // only this thread stores it
                                                 // Acquire: pairs with the server's Release store of the tail after it wrote the CQE.
        if tail.load(Ordering::Acquire) == seen {
            return None;
        }
        // SAFETY: masked, so inside the mapped CQE array; the server has written it and does not reuse it before the
        // head passes it.
        let cqe = unsafe { cq.cqes.add((seen & cq.ring_mask) as usize).read() };
        // Release: pairs with the server's Acquire load of the head before it reuses the CQE.
        head.store(seen.wrapping_add(1), Ordering::Release);
        self.completions += 1;
        self.negative += u64::from(cqe.res < 0);
        Some(cqe)
    }

    /// Waits for a CQE and takes it: io_uring_wait_cqe(3), a copy, and io_uring_cqe_seen(3).
    #[inline]
    pub fn wait_cqe(&mut self) -> Outcome<Cqe> {
        loop {
            if let Some(cqe) = self.peek_cqe() {
                return Ok(cqe);
            }
            let answer = match self.way {
                Way::Liburing(functions) => functions.wait_cqe(&mut self.ring),
                Way::Calls(calls) => calls.wait(&self.ring, 1),
            };
            if answer < 0 {
                return Err(Stop::Failed(format!("waiting for a CQE answered {answer}")));
            }
        }
    }

    /// io_uring_register(2).
    fn register(&mut self, opcode: u32, argument: *const libc::c_void, count: u32) -> i32 {
        match self.way {
            Way::Liburing(functions) => functions.register(&mut self.ring, opcode, argument, count),
            Way::Calls(calls) => calls.register(self.ring.ring_fd, opcode, argument, count),
        }
    }

    /// Makes a buffer ring of `count` (a power of two) buffers of `bytes` bytes each, as group 0, all given to the
    /// ring.
    pub fn provide_buffers(&mut self, count: u16, bytes: u32) -> Outcome<Buffers> {
        let mut buffers = Buffers::new(count, bytes)?;
        let registration =
            BufferRing { address: buffers.ring as u64, entries: u32::from(count), ..Default::default() };
        let answer = self.register(IORING_REGISTER_PBUF_RING, std::ptr::from_ref(&registration).cast(), 1);
        if answer < 0 {
            return Err(refused("io_uring_register_buf_ring", -answer));
        }
        (0..count).for_each(|buffer| buffers.put(buffer));
        buffers.publish();
        Ok(buffers)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        match self.way {
            Way::Liburing(functions) => functions.queue_exit(&mut self.ring),
            Way::Calls(calls) => calls.queue_exit(&mut self.ring),
        }
    }
}

/// Makes an SQE of this opcode on this descriptor.
pub fn sqe(opcode: Opcode, fd: i32, user_data: u64) -> Sqe {
    Sqe { opcode: opcode as u8, fd, user_data, ..Sqe::default() }
}

/// Makes a READ or WRITE of this memory. The caller keeps it alive and does not use it until the CQE.
pub fn transfer(opcode: Opcode, fd: i32, memory: *const u8, bytes: u32, offset: u64, user_data: u64) -> Sqe {
    Sqe { addr: memory as u64, len: bytes, off: offset, ..sqe(opcode, fd, user_data) }
}

const IORING_REGISTER_PBUF_RING: u32 = 22;

/// `struct io_uring_buf_reg`.
#[repr(C)]
#[derive(Default)]
struct BufferRing {
    address: u64,
    entries: u32,
    group: u16,
    flags: u16,
    reserved: [u64; 3],
}

/// `struct io_uring_buf`; the first one's last field is the ring's tail.
#[repr(C)]
struct BufferEntry {
    address: u64,
    bytes: u32,
    id: u16,
    tail: u16,
}

/// Buffers that the ring chooses from.
pub struct Buffers {
    ring: *mut BufferEntry,
    memory: Vec<u8>,
    count: u16,
    bytes: u32,
    tail: u16,
}

impl Buffers {
    fn new(count: u16, bytes: u32) -> Outcome<Self> {
        let size = usize::from(count) * size_of::<BufferEntry>();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at the kernel's choice; it is never unmapped, since the ring may still use it.
        let ring = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
        if ring == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let memory = vec![0; usize::from(count) * bytes as usize];
        Ok(Buffers { ring: ring.cast(), memory, count, bytes, tail: 0 })
    }

    /// Returns the contents of a buffer that the ring chose.
    pub fn get(&self, id: u16, bytes: usize) -> &[u8] {
        let start = usize::from(id) * self.bytes as usize;
        &self.memory[start..start + bytes]
    }

    /// Returns the buffer to the ring, visible with the next [`Buffers::publish`].
    pub fn put(&mut self, id: u16) {
        let address = self.memory.as_ptr() as u64 + u64::from(id) * u64::from(self.bytes);
        // SAFETY: masked, so inside the mapping of `count` entries; the server does not read it before the tail says so.
        // The tail, in the first entry, is not touched.
        unsafe {
            let entry = self.ring.add(usize::from(self.tail & (self.count - 1)));
            (*entry).address = address;
            (*entry).bytes = self.bytes;
            (*entry).id = id;
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Publishes the returned buffers to the ring.
    pub fn publish(&self) {
        // SAFETY: the tail is in the first entry of the mapping, aligned, and shared with the server.
        let tail = unsafe { AtomicU16::from_ptr(&raw mut (*self.ring).tail) };
        // Release: pairs with the server's Acquire load before it reads the entries.
        tail.store(self.tail, Ordering::Release);
    }
}
