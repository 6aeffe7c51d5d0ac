//! O_DIRECT writes, one at a time.

use super::io_wq_threads;
use crate::outcome::{expect, figure, Outcome, Stop};
use crate::peer::kernel_aio::KernelAio;
use crate::peer::posix_aio::PosixAio;
use crate::peer::threads::carry_out;
use crate::peer::{not_for, Aligned, Transfer, Transfers, Uring};
use crate::ring::Ring;
use anyring_lab::message::{DirectWrites, Door, Measured, Program};
use anyring_lab::statistics::median;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;

/// Runs the writes on this program: the median, us.
pub fn run(program: Program, door: Door, work: &DirectWrites) -> Outcome<Measured> {
    let mut ring = match program {
        Program::Uring => Some(Uring { ring: Ring::new(door, 8, 0)?, forced: work.forced }),
        _ => None,
    };
    let us = match (program, &mut ring) {
        (_, Some(uring)) => writes(work, |transfer| one(uring, transfer))?,
        (Program::Aio, _) => {
            let mut aio = KernelAio::new(8, 0)?;
            writes(work, |transfer| one(&mut aio, transfer))?
        }
        (Program::PosixAio, _) => writes(work, |transfer| one(&mut PosixAio::default(), transfer))?,
        (Program::Threads, _) => writes(work, |transfer| Ok(carry_out(&transfer)))?,
        (other, _) => return not_for(other),
    };
    let mut measured = figure(us, ring.as_ref().map(|uring| uring.ring.proof()));
    if ring.is_some() {
        measured.counts.insert("io_wq_threads".to_owned(), io_wq_threads());
    }
    Ok(measured)
}

/// Begins one transfer and waits for it.
fn one(transfers: &mut impl Transfers, transfer: Transfer) -> Outcome<i64> {
    let mut ended = Vec::with_capacity(1);
    transfers.begin(0, transfer)?;
    while ended.is_empty() {
        transfers.wait(&mut ended)?;
    }
    Ok(ended[0].1)
}

fn writes(work: &DirectWrites, mut write: impl FnMut(Transfer) -> Outcome<i64>) -> Outcome<f64> {
    let open = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&work.path);
    let file = open.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => Stop::Missing(format!("{} has no O_DIRECT", work.path.display())),
        _ => error.into(),
    })?;
    let bytes = work.bytes as usize;
    let mut memory = Aligned::new(bytes)?;
    let mut times_us = Vec::new();
    for number in 0..work.writes {
        memory.bytes_mut(0, bytes).fill(number as u8 + 1);
        let transfer = Transfer {
            write: true,
            fd: file.as_raw_fd(),
            address: memory.at(0),
            bytes: work.bytes,
            offset: Some(0),
        };
        let start = Instant::now();
        let result = write(transfer)?;
        times_us.push(start.elapsed().as_nanos() as f64 / 1000.0);
        expect(result == i64::from(work.bytes), || format!("a write ended with {result}"))?;
    }
    let back = Aligned::new(bytes)?;
    let read =
        Transfer { write: false, fd: file.as_raw_fd(), address: back.at(0), bytes: work.bytes, offset: Some(0) };
    let result = carry_out(&read);
    expect(result == i64::from(work.bytes), || format!("reading back answered {result}"))?;
    expect(back.bytes(0, bytes) == memory.bytes(0, bytes), || "what was written is not there".to_owned())?;
    Ok(median(&times_us))
}
