//! Many pipes, each written and read again and again.

use super::io_wq_threads;
use crate::outcome::{checked, expect, figure, want_descriptors, Outcome, Stop};
use crate::peer::epoll::Epoll;
use crate::peer::kernel_aio::KernelAio;
use crate::peer::libuv::Libuv;
use crate::peer::posix_aio::PosixAio;
use crate::peer::threads::{carry_out, Pool};
use crate::peer::{not_for, Transfer, Transfers, Uring};
use crate::ring::Ring;
use anyring_lab::message::{Door, Measured, Pipes, Program};
use std::time::Instant;

/// Bytes that go through a pipe at a time.
const TOKEN: usize = 16;
type Token = [u8; TOKEN];

/// The pipes and the tokens that go through them.
struct Field {
    ends: Vec<[i32; 2]>,
    sent: Vec<Token>,
    received: Vec<Token>,
}

impl Field {
    fn new(pipes: u32, flags: i32) -> Outcome<Self> {
        want_descriptors(u64::from(pipes) * 2 + 200)?;
        let mut ends = Vec::new();
        for _ in 0..pipes {
            let mut pair = [0; 2];
            // SAFETY: room for two descriptors.
            checked("pipe2", unsafe { libc::pipe2(pair.as_mut_ptr(), flags) })?;
            ends.push(pair);
        }
        Ok(Field { sent: vec![[0; TOKEN]; ends.len()], received: vec![[0; TOKEN]; ends.len()], ends })
    }

    /// Makes another token for each pipe.
    fn prepare(&mut self, round: u32) {
        for (pipe, token) in self.sent.iter_mut().enumerate() {
            token[..8].copy_from_slice(&(pipe as u64).to_ne_bytes());
            token[8..].copy_from_slice(&u64::from(round).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes());
        }
    }

    fn read(&mut self, pipe: usize) -> Transfer {
        let address = self.received[pipe].as_mut_ptr();
        Transfer { write: false, fd: self.ends[pipe][0], address, bytes: TOKEN as u32, offset: None }
    }

    fn write(&mut self, pipe: usize) -> Transfer {
        let address = self.sent[pipe].as_mut_ptr();
        Transfer { write: true, fd: self.ends[pipe][1], address, bytes: TOKEN as u32, offset: None }
    }

    fn check(&self, round: u32) -> Outcome<()> {
        expect(self.sent == self.received, || format!("round {round}: what was read is not what was written"))
    }
}

/// Runs the rounds on this program: ms in all.
pub fn run(program: Program, door: Door, work: &Pipes) -> Outcome<Measured> {
    let mut field = Field::new(work.pipes, libc::O_CLOEXEC)?;
    match program {
        Program::Uring => {
            let entries = (2 * work.pipes).next_power_of_two();
            let mut uring = Uring { ring: Ring::new(door, entries, 0)?, forced: work.forced };
            let mut measured = figure(rounds(&mut field, work, &mut uring, false)?, Some(uring.ring.proof()));
            measured.counts.insert("io_wq_threads".to_owned(), io_wq_threads());
            Ok(measured)
        }
        Program::Libuv => pool(&mut field, work, &mut Libuv::new()?),
        Program::PosixAio => pool(&mut field, work, &mut PosixAio::default()),
        Program::Threads => pool(&mut field, work, &mut Pool::new()?),
        Program::Aio if work.ready => {
            let mut aio = KernelAio::new(2 * work.pipes, libc::RWF_NOWAIT)?;
            Ok(figure(rounds(&mut field, work, &mut aio, false)?, None))
        }
        Program::Epoll => epoll(work),
        other => not_for(other),
    }
}

fn pool(field: &mut Field, work: &Pipes, pool: &mut impl Transfers) -> Outcome<Measured> {
    Ok(figure(rounds(field, work, pool, !work.ready)?, None))
}

/// Runs the rounds. `plain_writes`: write by the worker's own calls, because the pool may be blocked in reads.
fn rounds(field: &mut Field, work: &Pipes, transfers: &mut impl Transfers, plain_writes: bool) -> Outcome<f64> {
    let pipes = work.pipes as usize;
    let mut ended = Vec::with_capacity(2 * pipes);
    let start = Instant::now();
    for round in 0..work.rounds {
        field.prepare(round);
        for write in if work.ready { [true, false] } else { [false, true] } {
            for pipe in 0..pipes {
                let slot = 2 * pipe as u64 + u64::from(write);
                match write {
                    true if plain_writes => ended.push((slot, carry_out(&field.write(pipe)))),
                    true => transfers.begin(slot, field.write(pipe))?,
                    false => transfers.begin(slot, field.read(pipe))?,
                }
            }
            transfers.flush()?;
        }
        while ended.len() < 2 * pipes {
            transfers.wait(&mut ended)?;
        }
        for (slot, result) in ended.drain(..) {
            expect(result == TOKEN as i64, || format!("round {round}: request {slot} ended with {result}"))?;
        }
        field.check(round)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / 1e6)
}

/// Runs nonblocking pipes in an edge-triggered set. A read that fills less than its room has emptied the pipe
/// (epoll(7)), so the next one waits for an event.
fn epoll(work: &Pipes) -> Outcome<Measured> {
    let mut field = Field::new(work.pipes, libc::O_CLOEXEC | libc::O_NONBLOCK)?;
    let mut epoll = Epoll::new()?;
    for (pipe, [read_end, _]) in field.ends.iter().enumerate() {
        epoll.add(*read_end, libc::EPOLLET, pipe as u64)?;
    }
    let pipes = work.pipes as usize;
    let start = Instant::now();
    for round in 0..work.rounds {
        field.prepare(round);
        for pipe in 0..pipes {
            let written = carry_out(&field.write(pipe));
            expect(written == TOKEN as i64, || format!("round {round}: a write answered {written}"))?;
        }
        let mut left = pipes;
        if work.ready {
            (0..pipes).try_for_each(|pipe| read_all(&mut field, pipe))?;
            left = 0;
        }
        while left > 0 {
            for pipe in epoll.wait()? {
                read_all(&mut field, pipe as usize)?;
                left -= 1;
            }
        }
        field.check(round)?;
    }
    Ok(figure(start.elapsed().as_nanos() as f64 / 1e6, None))
}

/// Reads the token, with room for more.
fn read_all(field: &mut Field, pipe: usize) -> Outcome<()> {
    let mut room = [0u8; 4 * TOKEN];
    let transfer = Transfer { address: room.as_mut_ptr(), bytes: room.len() as u32, ..field.read(pipe) };
    let read = carry_out(&transfer);
    if read != TOKEN as i64 {
        return Err(Stop::Failed(format!("a read of pipe {pipe} answered {read}")));
    }
    field.received[pipe].copy_from_slice(&room[..TOKEN]);
    Ok(())
}
