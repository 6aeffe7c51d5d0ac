//! Reads of a file in blocks, a number of them in flight.

use crate::outcome::{expect, figure, Outcome, Stop};
use crate::peer::kernel_aio::KernelAio;
use crate::peer::libuv::Libuv;
use crate::peer::posix_aio::PosixAio;
use crate::peer::threads::carry_out;
use crate::peer::{not_for, Aligned, Transfer, Transfers, Uring};
use crate::ring::Ring;
use anyring_lab::message::{Door, Files, Measured, Program};
use anyring_lab::scratch::word_at;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;

/// Runs the reads on this program: ns for each.
pub fn run(program: Program, door: Door, work: &Files) -> Outcome<Measured> {
    let file = open(work)?;
    match program {
        Program::Uring => {
            let entries = work.depth.next_power_of_two();
            let mut uring = Uring { ring: Ring::new(door, entries, 0)?, forced: false };
            let ns = reads(&file, work, &mut uring)?;
            Ok(figure(ns, Some(uring.ring.proof())))
        }
        Program::Libuv => Ok(figure(reads(&file, work, &mut Libuv::new()?)?, None)),
        Program::PosixAio => Ok(figure(reads(&file, work, &mut PosixAio::default())?, None)),
        Program::Aio => Ok(figure(reads(&file, work, &mut KernelAio::new(work.depth, 0)?)?, None)),
        Program::Threads => Ok(figure(threads(&file, work)?, None)),
        other => not_for(other),
    }
}

/// Opens the file. All of it is read into the page cache, unless the reads bypass that.
fn open(work: &Files) -> Outcome<File> {
    let flags = if work.direct { libc::O_DIRECT } else { 0 };
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(&work.path) {
        Ok(file) => file,
        Err(error) if work.direct && error.raw_os_error() == Some(libc::EINVAL) => {
            let what = format!("the file system of {} has no O_DIRECT (TMPDIR names another)", work.path.display());
            return Err(Stop::Missing(what));
        }
        Err(error) => return Err(error.into()),
    };
    if !work.direct {
        std::io::copy(&mut &file, &mut std::io::sink())?;
    }
    Ok(file)
}

/// The offsets of the reads.
struct Places {
    blocks: u64,
    next: u64,
    random: Option<fastrand::Rng>,
}

impl Places {
    fn new(work: &Files, seed: u64) -> Self {
        let random = work.random.then(|| fastrand::Rng::with_seed(seed));
        Places { blocks: work.bytes / u64::from(work.block), next: 0, random }
    }

    fn next(&mut self, work: &Files) -> u64 {
        let block = match &mut self.random {
            Some(random) => random.u64(..self.blocks),
            None => {
                self.next += 1;
                (self.next - 1) % self.blocks
            }
        };
        block * u64::from(work.block)
    }
}

/// Checks the first and the last word of each page of a block.
fn check(block: &[u8], offset: u64) -> Outcome<()> {
    let (bytes, page) = (block.len(), 4096);
    for start in (0..bytes).step_by(page) {
        for at in [start, (start + page).min(bytes) - 8] {
            let found = block[at..at + 8].try_into().map(u64::from_ne_bytes).unwrap_or_default();
            expect(found == word_at(offset + at as u64), || format!("wrong data at {}", offset + at as u64))?;
        }
    }
    Ok(())
}

fn reads(file: &File, work: &Files, transfers: &mut impl Transfers) -> Outcome<f64> {
    let block = work.block as usize;
    let memory = Aligned::new(block * work.depth as usize)?;
    let mut offsets = vec![0; work.depth as usize];
    let mut places = Places::new(work, 1);
    let (mut begun, mut done) = (0, 0);
    let mut free: Vec<u64> = (0..u64::from(work.depth)).collect();
    let mut ended = Vec::with_capacity(free.len());
    let start = Instant::now();
    while done < work.operations {
        let left = (work.operations - begun) as usize;
        for slot in free.drain(..).take(left) {
            let offset = places.next(work);
            offsets[slot as usize] = offset;
            let (fd, address) = (file.as_raw_fd(), memory.at(slot as usize * block));
            transfers
                .begin(slot, Transfer { write: false, fd, address, bytes: work.block, offset: Some(offset) })?;
            begun += 1;
        }
        transfers.wait(&mut ended)?;
        for (slot, result) in ended.drain(..) {
            expect(result == i64::from(work.block), || format!("a read ended with {result}"))?;
            check(memory.bytes(slot as usize * block, block), offsets[slot as usize])?;
            free.push(slot);
            done += 1;
        }
    }
    Ok(start.elapsed().as_nanos() as f64 / work.operations as f64)
}

/// Reads with as many threads as there are reads in flight, each with its share.
fn threads(file: &File, work: &Files) -> Outcome<f64> {
    let share = work.operations.div_ceil(u64::from(work.depth));
    let one = |thread: u64| -> Result<(), String> {
        let memory = Aligned::new(work.block as usize).map_err(|stop| format!("{stop:?}"))?;
        let mut places = Places::new(work, thread + 1);
        places.next = thread * share;
        for _ in 0..share {
            let offset = places.next(work);
            let transfer = Transfer {
                write: false,
                fd: file.as_raw_fd(),
                address: memory.at(0),
                bytes: work.block,
                offset: Some(offset),
            };
            let result = carry_out(&transfer);
            if result != i64::from(work.block) {
                return Err(format!("pread answered {result}"));
            }
            check(memory.bytes(0, work.block as usize), offset).map_err(|stop| format!("{stop:?}"))?;
        }
        Ok(())
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..u64::from(work.depth)).map(|thread| scope.spawn(move || one(thread))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a panic".to_owned())));
        joined.collect::<Result<Vec<()>, String>>()
    })?;
    Ok(start.elapsed().as_nanos() as f64 / (share * u64::from(work.depth)) as f64)
}
