//! Fan-out servers on io_uring. They use a multishot ACCEPT, a MSG_RING with the descriptor's number for each
//! connection, and RECV, SEND and CLOSE on the ring that receives it.

use super::BYTES;
use crate::outcome::{expect, Outcome, Stop};
use crate::ring::{sqe, transfer, Ring};
use anyring_abi::{Cqe, Opcode, Sqe, IORING_ACCEPT_MULTISHOT, IORING_CQE_F_MORE, IOSQE_CQE_SKIP_SUCCESS};
use anyring_lab::message::{Door, FanOut, Proof};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::mpsc;

/// Room for the SQEs of all connections that are open at the same time.
pub const ENTRIES: u32 = 256;

/// The kind of a CQE, in the upper half of its user_data; a worker's connection is in the lower.
const ACCEPTED: u64 = 1;
const CANCELLED: u64 = 2;
const NOT_SENT: u64 = 3;
const HANDED: u64 = 4;
const RECEIVED: u64 = 5;
const SENT: u64 = 6;
const CLOSED: u64 = 7;

/// The value that ends a stream of descriptors.
const NO_MORE: u32 = 0x7fff_ffff;

/// Accepts with `ring`, and serves with the rings of further threads, until every connection was closed.
pub fn echo(door: Door, mut ring: Ring, listener: &TcpListener, work: FanOut) -> Outcome<Proof> {
    // As the documentation of both sides advises: without O_NONBLOCK an accept may sleep.
    listener.set_nonblocking(true)?;
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let start = |_| {
            let sender = sender.clone();
            scope.spawn(move || Worker::run(door, sender))
        };
        let workers: Vec<_> = (0..work.workers).map(start).collect();
        drop(sender);
        let targets: Vec<i32> = receiver.iter().collect();
        if targets.len() == workers.len() {
            accept(&mut ring, listener.as_raw_fd(), &targets, work.total)?;
        }
        let mut proof = ring.proof();
        for worker in workers {
            let of_worker = worker.join().map_err(|_| Stop::from("a worker panicked"))??;
            proof.completions += of_worker.completions;
            proof.negative += of_worker.negative;
        }
        Ok(proof)
    })
}

/// Hands each connection to the next of the targets.
fn accept(ring: &mut Ring, listener: i32, targets: &[i32], total: u32) -> Outcome<()> {
    let multishot = Sqe { ioprio: IORING_ACCEPT_MULTISHOT as u16, ..sqe(Opcode::Accept, listener, ACCEPTED << 32) };
    ring.push(multishot)?;
    let mut accepted = 0;
    while accepted < total {
        ring.submit_and_wait(1)?;
        while let Some(cqe) = ring.peek_cqe() {
            expect(cqe.user_data == ACCEPTED << 32 && cqe.res >= 0, || format!("instead of an ACCEPT: {cqe:?}"))?;
            ring.push(message(targets[accepted as usize % targets.len()], cqe.res as u32))?;
            accepted += 1;
            if cqe.flags & IORING_CQE_F_MORE == 0 && accepted < total {
                ring.push(multishot)?;
            }
        }
    }
    targets.iter().try_for_each(|target| ring.push(message(*target, NO_MORE)))?;
    ring.push(Sqe { addr: ACCEPTED << 32, ..sqe(Opcode::AsyncCancel, -1, CANCELLED << 32) })?;
    ring.submit_and_wait(2)?;
    for _ in 0..2 {
        let cqe = ring.wait_cqe()?;
        let ended = matches!((cqe.user_data >> 32, cqe.res), (CANCELLED, 0));
        let cancelled = cqe.user_data >> 32 == ACCEPTED && cqe.res == -libc::ECANCELED;
        expect(ended || cancelled, || format!("instead of a cancelled ACCEPT: {cqe:?}"))?;
    }
    Ok(())
}

/// Makes a message whose own completion is posted only if it fails.
fn message(target: i32, fd: u32) -> Sqe {
    let sqe = sqe(Opcode::MsgRing, target, NOT_SENT << 32);
    Sqe { len: fd, off: HANDED << 32, flags: IOSQE_CQE_SKIP_SUCCESS, ..sqe }
}

/// A connection of a worker.
struct Connection {
    fd: i32,
    bytes: Box<[u8; BYTES]>,
    received: usize,
}

struct Worker {
    ring: Ring,
    connections: Vec<Connection>,
    /// Places in `connections` to be used again.
    free: Vec<usize>,
    more: bool,
}

impl Worker {
    fn run(door: Door, sender: mpsc::Sender<i32>) -> Outcome<Proof> {
        let ring = Ring::new(door, ENTRIES, 0)?;
        // The listening thread is gone only after an error of its own.
        sender.send(ring.fd()).unwrap_or_default();
        drop(sender);
        let mut worker = Worker { ring, connections: Vec::new(), free: Vec::new(), more: true };
        while worker.more || worker.free.len() < worker.connections.len() {
            worker.ring.submit_and_wait(1)?;
            while let Some(cqe) = worker.ring.peek_cqe() {
                worker.follow(cqe)?;
            }
        }
        Ok(worker.ring.proof())
    }

    fn follow(&mut self, cqe: Cqe) -> Outcome<()> {
        let number = cqe.user_data as u32 as usize;
        match (cqe.user_data >> 32, cqe.res) {
            (HANDED, res) if res as u32 == NO_MORE => self.more = false,
            (HANDED, fd) => {
                let connection = Connection { fd, bytes: Box::new([0; BYTES]), received: 0 };
                let number = match self.free.pop() {
                    Some(number) => {
                        self.connections[number] = connection;
                        number
                    }
                    None => {
                        self.connections.push(connection);
                        self.connections.len() - 1
                    }
                };
                self.receive(number)?;
            }
            (RECEIVED, res) if res > 0 => {
                self.connections[number].received += res as usize;
                if self.connections[number].received < BYTES {
                    return self.receive(number);
                }
                let connection = &self.connections[number];
                let (fd, memory) = (connection.fd, connection.bytes.as_ptr());
                let send = transfer(Opcode::Send, fd, memory, BYTES as u32, 0, SENT << 32 | number as u64);
                self.ring.push(Sqe { op_flags: libc::MSG_NOSIGNAL as u32, ..send })?;
            }
            (SENT, res) if res == BYTES as i32 => {
                let fd = self.connections[number].fd;
                self.ring.push(sqe(Opcode::Close, fd, CLOSED << 32 | number as u64))?;
            }
            (CLOSED, 0) => self.free.push(number),
            _ => return Err(Stop::Failed(format!("a connection's request ended with {cqe:?}"))),
        }
        Ok(())
    }

    fn receive(&mut self, number: usize) -> Outcome<()> {
        let Connection { fd, bytes, received } = &mut self.connections[number];
        let rest = &mut bytes[*received..];
        let (memory, count) = (rest.as_mut_ptr(), rest.len() as u32);
        self.ring.push(transfer(Opcode::Recv, *fd, memory, count, 0, RECEIVED << 32 | number as u64))
    }
}
