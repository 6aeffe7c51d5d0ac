//! Models that keep a read in flight on each pipe: asynchronous reads of Linux AIO, READ of io_uring.

use super::{Field, Model};
use crate::aio::Aio;
use crate::outcome::{checked, expect, Outcome, Stop};
use crate::peer::kernel_aio::read_of;
use crate::peer::Aligned;
use crate::ring::{transfer, Ring};
use anyring_abi::{IoEvent, Iocb, Opcode};
use anyring_lab::message::{Door, Proof};

/// Two buffers for each pipe: while a token is written out of one, the next is read into the other.
struct Memory {
    all: Aligned,
    bytes: usize,
    /// True for each pipe whose read in flight has the second buffer.
    second: Vec<bool>,
}

impl Memory {
    fn new(field: &Field) -> Outcome<Self> {
        let (bytes, count) = (field.bytes.next_multiple_of(64), field.read_end_count());
        Ok(Memory { all: Aligned::new(2 * bytes * count)?, bytes, second: vec![false; count] })
    }

    /// Returns the buffer for the read of this pipe.
    #[inline]
    fn of_read(&self, index: usize) -> *mut u8 {
        self.all.at(self.place(index, self.second[index]))
    }

    #[inline]
    fn place(&self, index: usize, second: bool) -> usize {
        (2 * index + usize::from(second)) * self.bytes
    }

    /// Returns the bytes of the read that ended. The other buffer is for the next read.
    #[inline]
    fn turn(&mut self, index: usize, bytes: usize) -> &mut [u8] {
        let second = self.second[index];
        self.second[index] = !second;
        self.all.bytes_mut(self.place(index, second), bytes)
    }

    /// Returns the bytes of the last read.
    #[inline]
    fn last(&self, index: usize, bytes: usize) -> &[u8] {
        self.all.bytes(self.place(index, !self.second[index]), bytes)
    }
}

/// IOCB_CMD_PREAD on each pipe.
pub struct AioRead {
    aio: Aio,
    from_memory: bool,
    iocbs: Vec<Iocb>,
    events: Vec<IoEvent>,
    again: Vec<*const Iocb>,
    memory: Memory,
}

impl AioRead {
    pub fn new(field: &Field, door: Door, from_memory: bool) -> Outcome<Self> {
        check_that_it_returns(door)?;
        let mut aio = Aio::new(door, field.read_end_count() as u32)?;
        let memory = Memory::new(field)?;
        let reads = field.read_ends().enumerate();
        let iocbs: Vec<Iocb> =
            reads.map(|(index, fd)| read_of(index as u64, fd, memory.of_read(index), field.bytes)).collect();
        let all: Vec<*const Iocb> = iocbs.iter().map(std::ptr::from_ref).collect();
        // SAFETY: the iocbs stay where they are, and each buffer is left alone until its read's event.
        unsafe { aio.submit(&all) }?;
        let events = vec![IoEvent::default(); field.active.len()];
        Ok(AioRead { aio, from_memory, iocbs, events, again: Vec::new(), memory })
    }
}

impl Model for AioRead {
    fn turn(&mut self, field: &mut Field) -> Outcome<u64> {
        let count = match self.from_memory {
            true => self.aio.read_events(&mut self.events)?,
            false => self.aio.get_events(&mut self.events)?,
        };
        self.again.clear();
        for event in &self.events[..count] {
            let index = event.data as usize;
            expect(event.res == field.bytes as i64, || format!("a read ended with {event:?}"))?;
            field.pass(index, self.memory.turn(index, field.bytes))?;
            self.iocbs[index].buf = self.memory.of_read(index) as u64;
            self.again.push(&raw const self.iocbs[index]);
        }
        // SAFETY: as in `new`: the next read's buffer is not the one with its pipe's token.
        unsafe { self.aio.submit(&self.again) }?;
        for event in &self.events[..count] {
            let index = event.data as usize;
            field.write_on(index, self.memory.last(index, field.bytes))?;
        }
        Ok(count as u64)
    }

    fn end(self) -> Outcome<Option<Proof>> {
        self.aio.end().map(Some)
    }
}

/// The time that io_submit(2) may take for a read of an empty pipe.
const PATIENCE_MS: i32 = 200;

/// Makes a child submit a read of an empty pipe. The kernel keeps it in io_submit(2) until another process writes.
fn check_that_it_returns(door: Door) -> Outcome<()> {
    let (empty, notice) = (super::pipe()?, super::pipe()?);
    // SAFETY: this process has one thread, and no context or ring yet.
    let child = checked("fork", unsafe { libc::fork() })? as i32;
    if child == 0 {
        let _ = submit_a_read(door, empty[0]); // the parent gets the same error, and reports it
                                               // SAFETY: one readable byte; then the process ends without running anything of its parent's.
        unsafe {
            libc::write(notice[1], [0u8].as_ptr().cast(), 1);
            libc::_exit(0)
        }
    }
    // SAFETY: our descriptor; the child has its own.
    unsafe { libc::close(notice[1]) };
    let mut fd = libc::pollfd { fd: notice[0], events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure.
    let returned = checked("poll", unsafe { libc::poll(&mut fd, 1, PATIENCE_MS) })? == 1;
    // SAFETY: a child that nobody has waited for, and our descriptors.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
        for fd in [empty[0], empty[1], notice[0]] {
            libc::close(fd);
        }
    }
    match returned {
        true => Ok(()),
        false => Err(Stop::Missing(format!(
            "io_submit blocks on an empty pipe: it had not returned from a read after {PATIENCE_MS} ms"
        ))),
    }
}

fn submit_a_read(door: Door, fd: i32) -> Outcome<()> {
    let mut byte = 0u8;
    let iocb = read_of(0, fd, &mut byte, 1);
    let mut aio = Aio::new(door, 1)?;
    // SAFETY: iocb and byte stay until the process ends, right after this.
    unsafe { aio.submit(&[&raw const iocb]) }
}

/// SQEs in a submit call while the idle ones are armed.
const BATCH: usize = 256;
/// The mark in the `user_data` of a write.
const WRITE: u64 = 1 << 63;

/// A READ on each pipe. One call submits the writes and the next reads.
pub struct Uring {
    ring: Ring,
    memory: Memory,
    ended: Vec<usize>,
    writes: u32,
}

impl Uring {
    pub fn new(field: &Field, door: Door) -> Outcome<Self> {
        let ring = Ring::new(door, (2 * field.active.len()).max(BATCH).next_power_of_two() as u32, 0)?;
        let mut model = Uring { ring, memory: Memory::new(field)?, ended: Vec::new(), writes: 0 };
        for (index, fd) in field.read_ends().enumerate() {
            model.read(index, fd, field.bytes)?;
            if index % BATCH == BATCH - 1 {
                model.ring.submit()?;
            }
        }
        model.ring.submit()?;
        Ok(model)
    }

    #[inline]
    fn read(&mut self, index: usize, fd: i32, bytes: usize) -> Outcome<()> {
        let memory = self.memory.of_read(index);
        self.ring.push(transfer(Opcode::Read, fd, memory, bytes as u32, u64::MAX, index as u64))
    }
}

impl Model for Uring {
    fn turn(&mut self, field: &mut Field) -> Outcome<u64> {
        // The writes end in this call, since there is room. Then at least one read has a token.
        self.ring.submit_and_wait(self.writes + 1)?;
        while let Some(cqe) = self.ring.peek_cqe() {
            expect(cqe.res == field.bytes as i32, || format!("a request ended with {cqe:?}"))?;
            match cqe.user_data & WRITE {
                0 => self.ended.push(cqe.user_data as usize),
                _ => self.writes -= 1,
            }
        }
        let bytes = field.bytes;
        for index in &self.ended {
            field.pass(*index, self.memory.turn(*index, bytes))?;
        }
        let ended = std::mem::take(&mut self.ended);
        for index in ended.iter().copied() {
            self.read(index, field.active[index][0], bytes)?;
        }
        for index in ended.iter().copied().filter(|_| !field.gathering) {
            let (fd, memory) = (field.active[field.after(index)][1], self.memory.last(index, bytes).as_ptr());
            let user_data = WRITE | index as u64;
            self.ring.push(transfer(Opcode::Write, fd, memory, bytes as u32, u64::MAX, user_data))?;
            self.writes += 1;
        }
        let passed = ended.len() as u64;
        self.ended = ended;
        self.ended.clear();
        Ok(passed)
    }

    fn end(self) -> Outcome<Option<Proof>> {
        Ok(Some(self.ring.proof()))
    }
}
