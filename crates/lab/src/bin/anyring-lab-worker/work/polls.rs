//! Many eventfds: only a few become ready.

use crate::outcome::{checked, expect, figure, want_descriptors, Outcome};
use crate::peer::epoll::Epoll;
use crate::peer::kernel_aio::KernelAio;
use crate::peer::{not_for, Transfers};
use crate::ring::{sqe, Ring};
use anyring_abi::{Opcode, Sqe};
use anyring_lab::message::{Door, Measured, Polls, Program};
use std::time::Instant;

/// SQEs in a submit call while the idle ones are armed.
const BATCH: usize = 256;

/// Runs the rounds on this program: ns for each descriptor that became ready.
pub fn run(program: Program, door: Door, work: &Polls) -> Outcome<Measured> {
    let all = work.idle + work.active;
    want_descriptors(u64::from(all) + 200)?;
    let mut fds = Vec::new();
    for _ in 0..all {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        fds.push(checked("eventfd", fd)? as i32);
    }
    // The active ones are spread among the idle ones.
    let step = all / work.active;
    let active: Vec<usize> = (0..work.active).map(|number| (number * step) as usize).collect();
    match program {
        Program::Uring => {
            let mut ring = Ring::new(door, BATCH as u32, 0)?;
            let ns = uring(&mut ring, work, &fds, &active)?;
            Ok(figure(ns, Some(ring.proof())))
        }
        Program::Epoll => {
            let mut epoll = Epoll::new()?;
            for (index, fd) in fds.iter().enumerate() {
                epoll.add(*fd, libc::EPOLLET, index as u64)?;
            }
            let wait = |epoll: &mut Epoll, ready: &mut Vec<u64>| {
                ready.extend(epoll.wait()?);
                Ok(())
            };
            Ok(figure(rounds(work, &fds, &active, &mut epoll, wait, |_, _, _| Ok(()), |_| Ok(()))?, None))
        }
        Program::Aio => {
            let mut aio = KernelAio::new(all, 0)?;
            fds.iter().enumerate().for_each(|(index, fd)| aio.begin_poll(index as u64, *fd));
            aio.flush()?;
            let wait = |aio: &mut KernelAio, ready: &mut Vec<u64>| {
                let mut ended = Vec::new();
                aio.wait(&mut ended)?;
                let right = ended.iter().all(|(_, events)| events & libc::POLLIN as i64 != 0);
                expect(right, || format!("polls ended with {ended:?}"))?;
                ready.extend(ended.into_iter().map(|(slot, _)| slot));
                Ok(())
            };
            let again = |aio: &mut KernelAio, index: u64, fd: i32| {
                aio.begin_poll(index, fd);
                Ok(())
            };
            Ok(figure(rounds(work, &fds, &active, &mut aio, wait, again, |aio| aio.flush())?, None))
        }
        other => not_for(other),
    }
}

fn uring(ring: &mut Ring, work: &Polls, fds: &[i32], active: &[usize]) -> Outcome<f64> {
    let poll = |fd: i32, index: u64| Sqe { op_flags: libc::POLLIN as u32, ..sqe(Opcode::PollAdd, fd, index) };
    for (index, fd) in fds.iter().enumerate() {
        ring.push(poll(*fd, index as u64))?;
        if index % BATCH == BATCH - 1 {
            ring.submit()?;
        }
    }
    ring.submit()?;
    let wait = |ring: &mut Ring, ready: &mut Vec<u64>| {
        ring.submit_and_wait(1)?;
        while let Some(cqe) = ring.peek_cqe() {
            expect(cqe.res == libc::POLLIN as i32, || format!("a poll completed with {cqe:?}"))?;
            ready.push(cqe.user_data);
        }
        Ok(())
    };
    rounds(work, fds, active, ring, wait, |ring, index, fd| ring.push(poll(fd, index)), |ring| ring.submit())
}

/// Runs the rounds: writes, waits until all are found, reads and checks each, and polls it again.
fn rounds<P>(
    work: &Polls,
    fds: &[i32],
    active: &[usize],
    poller: &mut P,
    mut wait: impl FnMut(&mut P, &mut Vec<u64>) -> Outcome<()>,
    mut again: impl FnMut(&mut P, u64, i32) -> Outcome<()>,
    mut flush: impl FnMut(&mut P) -> Outcome<()>,
) -> Outcome<f64> {
    let mut ready = Vec::with_capacity(active.len());
    let start = Instant::now();
    for round in 0..work.rounds {
        let value = u64::from(round) + 1;
        for index in active {
            // SAFETY: eight readable bytes.
            let answer = unsafe { libc::write(fds[*index], (&raw const value).cast(), 8) };
            expect(answer == 8, || format!("writing to an eventfd answered {answer}"))?;
        }
        let mut found = 0;
        while found < active.len() {
            wait(poller, &mut ready)?;
            for index in ready.drain(..) {
                let (fd, mut read) = (fds[index as usize], 0u64);
                // SAFETY: eight writable bytes.
                let answer = unsafe { libc::read(fd, (&raw mut read).cast(), 8) };
                expect(answer == 8 && read == value, || format!("eventfd {index} gave {read}, not {value}"))?;
                again(poller, index, fd)?;
                found += 1;
            }
        }
        flush(poller)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / (f64::from(work.rounds) * active.len() as f64))
}
