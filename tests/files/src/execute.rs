//! One process of a program: makes its requests, and compares each result and each byte with the model.

use crate::abilities::Abilities;
use crate::memory::{difference, pieces, Places, PLACE_BYTES};
use crate::model::{fill, Made, Model};
use crate::opened::{self, OpenFile, NAME};
use crate::program::*;
use crate::together::Together;
use anyhow::{bail, ensure, Context, Result};
use anyring_abi::*;
use anyring_conformance::door::Door;
use anyring_conformance::ring::Ring;
use anyring_conformance::sqe::{self, prep, SqeFields};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The entries of a ring: more than it has requests.
const ENTRIES: u32 = 16;
/// The time after which the thread of an SQPOLL ring sleeps, in milliseconds: so short that it does.
const IDLE_MS: u32 = 2;

/// The time after which a missing CQE is reported: a FUSE server may be slow on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A ring with its memory.
struct Lane {
    ring: Ring,
    places: Places,
    /// The vectors of the requests in flight.
    vectors: Vec<Vec<libc::iovec>>,
}

struct Process<'p> {
    program: &'p Program,
    abilities: &'p Abilities,
    together: Together,
    model: Model,
    file: OpenFile,
    lanes: Vec<Lane>,
}

/// Runs the program in the working directory, which is empty, with as many processes as it has. Returns in each of them,
/// with the number of requests that this one has made.
pub fn run(program: &Program) -> Result<(Together, Result<u64>)> {
    let abilities = Abilities::of(std::path::Path::new("."))?;
    let together = Together::fork(program.processes)?;
    let number = together.process;
    let model = Model { bytes: Vec::new(), refused: abilities.refused.clone() };
    let file = OpenFile::new(&abilities)?;
    let mut process = Process { program, abilities: &abilities, together, model, file, lanes: Vec::new() };
    for flags in program.setup_flags[number as usize] {
        process.lanes.push(Lane::new(program, flags, process.file.numbers())?);
    }
    let done = process.steps().with_context(|| format!("process {number}"));
    Ok((process.together, done))
}

impl Lane {
    fn new(program: &Program, flags: u32, files: [i32; 3]) -> Result<Lane> {
        let door = if program.by_instructions { Door::Raw } else { Door::Libc };
        let params = Params { flags, sq_thread_idle: IDLE_MS, ..Params::default() };
        let mut ring = match Ring::from_params(door, ENTRIES, params) {
            Ok(ring) => ring,
            Err(answer) => bail!("setup with flags {flags:#x} answered {answer}"),
        };
        // The kernel may end a wait with EINTR, although no signal has a handler here.
        ring.disturbed = true;
        ring.register_files(&files);
        let places = Places::new();
        let buffers: Vec<libc::iovec> = (0..REQUESTS)
            .map(|place| libc::iovec { iov_base: places.address(place) as *mut _, iov_len: PLACE_BYTES })
            .collect();
        let answer = ring.register_buffers(&buffers);
        ensure!(answer == 0, "register buffers answered {answer}");
        Ok(Lane { ring, places, vectors: vec![Vec::new(); REQUESTS] })
    }

    /// Puts a request into the SQ, with its memory in this place.
    fn push(&mut self, place: usize, seed: u64, request: &Request, order: Order, file: &OpenFile) {
        self.places.prepare(place, seed, request);
        let sqe = self.sqe(place, request, file);
        let flags = match order {
            Order::Linked => IOSQE_IO_LINK,
            Order::HardLinked => IOSQE_IO_HARDLINK,
            Order::Drained => IOSQE_IO_DRAIN,
            Order::Single | Order::Free => 0,
        };
        let on_worker = if request.on_worker { IOSQE_ASYNC } else { 0 };
        self.ring.push(sqe.data(request.id.into()).with(flags | on_worker));
    }

    fn sqe(&mut self, place: usize, request: &Request, file: &OpenFile) -> Sqe {
        let opened = match request.work {
            Work::Read(_, opened, _) | Work::Write(_, opened, _) => opened,
            _ => Opened::Plain,
        };
        let fd = file.get(opened).as_raw_fd();
        let sqe = match request.work {
            Work::Read(range, _, memory) => self.transfer(place, request, range, memory, READS),
            Work::Write(range, _, memory) => self.transfer(place, request, range, memory, WRITES),
            Work::Truncate(size) => prep(Opcode::Ftruncate, 0, 0, 0, size.into()),
            Work::Allocate(range, allocation) => {
                prep(Opcode::Fallocate, 0, range.len.into(), allocation.mode() as u32, range.at.into())
            }
            Work::Sync(data_only) => sqe::fsync(0, if data_only { IORING_FSYNC_DATASYNC } else { 0 }),
            Work::SyncRange(range) => prep(Opcode::SyncFileRange, 0, 0, range.len, range.at.into())
                .op_flags(libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER),
            Work::Drop(range) => {
                prep(Opcode::Fadvise, 0, 0, range.len, range.at.into()).op_flags(libc::POSIX_FADV_DONTNEED as u32)
            }
            Work::Load(_) | Work::Store(_) => unreachable!("made without io_uring"),
        };
        match request.registered_file {
            true => Sqe { fd: opened::place(opened) as i32, ..sqe }.with(IOSQE_FIXED_FILE),
            false => Sqe { fd, ..sqe },
        }
    }

    fn transfer(
        &mut self,
        place: usize,
        request: &Request,
        range: Range,
        memory: Memory,
        opcodes: [Opcode; 3],
    ) -> Sqe {
        let base = self.places.address(place);
        let vectors = &mut self.vectors[place];
        *vectors = pieces(request)
            .into_iter()
            .map(|(at, length)| libc::iovec { iov_base: (base + at) as *mut _, iov_len: length })
            .collect();
        let first = vectors[0].iov_base as u64;
        let [single, vector, registered] = opcodes;
        match memory {
            Memory::Single => prep(single, 0, first, range.len, range.at.into()),
            Memory::Vector => prep(vector, 0, vectors.as_ptr() as u64, vectors.len() as u32, range.at.into()),
            Memory::Registered => prep(registered, 0, first, range.len, range.at.into()).buffer(place as u16),
        }
    }

    /// Submits what was pushed.
    fn submit(&mut self) -> Result<()> {
        let count = self.ring.publish();
        if self.ring.params.flags & IORING_SETUP_SQPOLL == 0 {
            let answer = self.ring.enter(count, 0, 0, 0, 0);
            ensure!(answer == count as isize, "submission of {count} requests answered {answer}");
        } else if self.ring.sq_flags() & IORING_SQ_NEED_WAKEUP != 0 {
            let answer = self.ring.enter(count, 0, IORING_ENTER_SQ_WAKEUP, 0, 0);
            ensure!(answer == count as isize, "wake-up for {count} requests answered {answer}");
        }
        Ok(())
    }

    /// Waits for the CQEs of these requests, whose places are their positions, and compares.
    fn complete(&mut self, seed: u64, made: &[Made]) -> Result<()> {
        let mut left: Vec<(usize, &Made)> = made.iter().enumerate().collect();
        while !left.is_empty() {
            let cqe = self.wait()?;
            let position = left.iter().position(|(_, made)| u64::from(made.request.id) == cqe.user_data);
            let (place, made) = left.swap_remove(position.with_context(|| format!("unexpected {cqe:?}"))?);
            let (request, wanted) = (&made.request, made.result);
            ensure!(cqe.res == wanted, "{request}: result {} instead of {wanted}", cqe.res);
            if let Some(text) = self.places.difference(place, seed, made) {
                bail!("{request}: {text}");
            }
        }
        Ok(())
    }

    /// Makes one request that concerns no bytes. Returns its result.
    fn plain(&mut self, sqe: Sqe) -> Result<i32> {
        self.ring.push(sqe.data(0));
        self.submit()?;
        Ok(self.wait()?.res)
    }

    fn wait(&mut self) -> Result<Cqe> {
        self.ring.wait_for(PATIENCE).with_context(|| format!("no CQE came in {PATIENCE:?}"))
    }
}

const READS: [Opcode; 3] = [Opcode::Read, Opcode::Readv, Opcode::ReadFixed];
const WRITES: [Opcode; 3] = [Opcode::Write, Opcode::Writev, Opcode::WriteFixed];

impl Process<'_> {
    /// Runs all steps, and compares the file at the end. Returns the number of requests made.
    fn steps(&mut self) -> Result<u64> {
        self.together.meet()?;
        let mut count = 0;
        for (index, step) in self.program.steps.iter().enumerate() {
            count += self.step(step).with_context(|| format!("step {index}"))?;
            self.together.meet()?;
        }
        self.compare().context("at the end")?;
        self.together.meet()?;
        if self.together.process == 0 {
            self.compare_stored().context("at the end, without the page cache")?;
        }
        Ok(count)
    }

    fn step(&mut self, step: &Step) -> Result<u64> {
        match step {
            Step::Requests(order, requests) => return self.requests(*order, requests),
            Step::Reopen(process, ring) if *process == self.together.process => self.reopen(*ring as usize)?,
            Step::Compare(process) if *process == self.together.process => self.compare()?,
            Step::Reopen(..) | Step::Compare(_) => {}
        }
        Ok(0)
    }

    fn requests(&mut self, order: Order, requests: &[Request]) -> Result<u64> {
        let has_mapping = self.abilities.mapping;
        let is_there = |request: &&Request| has_mapping || !matches!(request.work, Work::Load(_) | Work::Store(_));
        let requests: Vec<Request> = requests.iter().filter(is_there).copied().collect();
        let seed = self.program.seed;
        let made = self.model.step(seed, order, &requests);
        let mine: Vec<Made> =
            made.into_iter().filter(|made| made.request.process == self.together.process).collect();
        if order == Order::Single {
            mine.chunks(1).try_for_each(|one| self.together_in_flight(order, one))?;
        } else {
            self.together_in_flight(order, &mine)?;
        }
        Ok(mine.len() as u64)
    }

    /// Submits requests to their rings, accesses the mapping, and waits for the CQEs.
    fn together_in_flight(&mut self, order: Order, made: &[Made]) -> Result<()> {
        let seed = self.program.seed;
        let is_mapped = |made: &&Made| matches!(made.request.work, Work::Load(_) | Work::Store(_));
        let of_lane = |lane: usize| -> Vec<Made> {
            let own = made.iter().filter(|made| made.request.ring as usize == lane && !is_mapped(made));
            own.cloned().collect()
        };
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let own = of_lane(index);
            for (place, made) in own.iter().enumerate() {
                let order = if place + 1 == own.len() && order != Order::Drained { Order::Free } else { order };
                lane.push(place, seed, &made.request, order, &self.file);
            }
            if !own.is_empty() {
                lane.submit()?;
            }
        }
        made.iter().filter(is_mapped).try_for_each(|made| self.access(made))?;
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            lane.complete(seed, &of_lane(index))?;
        }
        Ok(())
    }

    /// Loads from the mapping, or stores to it.
    fn access(&self, made: &Made) -> Result<()> {
        let (Some(mapping), Some(range)) = (&self.file.mapping, made.request.work.range()) else {
            bail!("{}: no mapping", made.request);
        };
        let mut bytes = vec![0; range.len as usize];
        // SAFETY: the mapping is as long as the largest file, and the model says that the file has these bytes.
        let address = unsafe { mapping.address.add(range.at as usize) };
        if let Work::Store(_) = made.request.work {
            fill(self.program.seed, made.request.id, &mut bytes);
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, bytes.len()) };
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(address, bytes.as_mut_ptr(), bytes.len()) };
        match difference(&made.read, &bytes) {
            Some(text) => bail!("{}: the mapping differs: {text}", made.request),
            None => Ok(()),
        }
    }

    /// Opens other descriptors by requests, registers them in place of the first, and closes those.
    fn reopen(&mut self, ring: usize) -> Result<()> {
        let lane = &mut self.lanes[ring];
        let mut numbers = [-1; 3];
        for (number, flags) in numbers.iter_mut().zip(opened::flags(self.abilities)) {
            *number = lane.plain(sqe::openat(libc::AT_FDCWD, NAME, flags, 0o600))?;
            ensure!(*number >= 0, "OPENAT answered {number}");
        }
        let before = std::mem::replace(&mut self.file, OpenFile::from_numbers(numbers, self.abilities)?);
        for lane in &self.lanes {
            // struct io_uring_files_update: offset, reserved, address.
            let argument = [0, numbers.as_ptr() as u64];
            let answer = lane.ring.register(IORING_REGISTER_FILES_UPDATE, argument.as_ptr() as usize, 3);
            ensure!(answer == 3, "FILES_UPDATE answered {answer}");
        }
        for number in before.into_numbers() {
            let answer = self.lanes[ring].plain(sqe::close(number))?;
            ensure!(answer == 0, "CLOSE answered {answer}");
        }
        Ok(())
    }

    /// Compares the size and all bytes by system calls, and by the mapping.
    fn compare(&self) -> Result<()> {
        self.compare_by(Opened::Plain)?;
        let Some(mapping) = &self.file.mapping else { return Ok(()) };
        let mut bytes = vec![0; self.model.bytes.len()];
        // SAFETY: the mapping is as long as the largest file, and the file has just been seen to have these bytes.
        unsafe { std::ptr::copy_nonoverlapping(mapping.address, bytes.as_mut_ptr(), bytes.len()) };
        match difference(&self.model.bytes, &bytes) {
            Some(text) => bail!("the mapping differs: {text}"),
            None => Ok(()),
        }
    }

    fn compare_by(&self, opened: Opened) -> Result<()> {
        let file = self.file.get(opened);
        let (size, expected) = (file.metadata()?.len(), self.model.bytes.len());
        ensure!(size == expected as u64, "the file has {size:#x} bytes instead of {expected:#x}");
        // At the border of a block, for direct reads.
        let mut memory = vec![0; FILE_BYTES as usize + BLOCK as usize];
        let skew = memory.as_ptr().align_offset(BLOCK as usize);
        let bytes = &mut memory[skew..][..FILE_BYTES as usize];
        let mut length = 0;
        while length < expected {
            match file.read_at(&mut bytes[length..], length as u64)? {
                0 => break,
                count => length += count,
            }
        }
        match difference(&self.model.bytes, &bytes[..length]) {
            Some(text) => bail!("the file differs: {text}"),
            None => Ok(()),
        }
    }

    /// Compares what has reached the device.
    fn compare_stored(&self) -> Result<()> {
        let file = self.file.get(Opened::Plain);
        file.sync_all()?;
        // SAFETY: numbers only.
        let answer = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        ensure!(answer == 0, "fadvise answered {answer}");
        self.compare_by(Opened::Direct)
    }
}
