//! The echo servers. Each ends when the client has closed every connection.

use crate::outcome::{expect, Outcome, Stop};
use crate::peer::epoll::Epoll;
use crate::ring::{transfer, Buffers, Ring};
use anyring_abi::{
    Opcode, Sqe, IORING_CQE_BUFFER_SHIFT, IORING_CQE_F_BUFFER, IORING_CQE_F_MORE, IORING_RECV_MULTISHOT,
    IOSQE_BUFFER_SELECT,
};
use anyring_lab::message::Echo;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// The kind of a request, in the upper half of its user_data; the connection is in the lower.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

fn tag(kind: u64, connection: usize) -> u64 {
    kind << 32 | connection as u64
}

/// Returns the result of a CQE as a number of bytes.
fn count(kind: &str, result: i32) -> Outcome<usize> {
    usize::try_from(result).map_err(|_| Stop::Failed(format!("a {kind} ended with {result}")))
}

/// Serves by a RECV, then a SEND of the bytes received.
pub fn plain(ring: &mut Ring, connections: &[TcpStream], work: &Echo) -> Outcome<()> {
    let mut buffers = vec![vec![0u8; work.bytes as usize]; connections.len()];
    let mut unsent = vec![0..0; connections.len()];
    for (number, connection) in connections.iter().enumerate() {
        receive(ring, connection, &mut buffers[number], number)?;
    }
    let mut open = connections.len();
    while open > 0 {
        ring.submit_and_wait(1)?;
        while let Some(cqe) = ring.peek_cqe() {
            let number = cqe.user_data as u32 as usize;
            let connection = &connections[number];
            if cqe.user_data >> 32 == RECEIVE {
                unsent[number] = 0..count("RECV", cqe.res)?;
                if cqe.res == 0 {
                    open -= 1;
                    continue;
                }
            } else {
                unsent[number].start += count("SEND", cqe.res)?;
            }
            match unsent[number].clone() {
                rest if rest.is_empty() => receive(ring, connection, &mut buffers[number], number)?,
                rest => send(ring, connection, &buffers[number][rest], number)?,
            }
        }
    }
    Ok(())
}

fn receive(ring: &mut Ring, connection: &TcpStream, buffer: &mut [u8], number: usize) -> Outcome<()> {
    let (memory, bytes) = (buffer.as_mut_ptr(), buffer.len() as u32);
    ring.push(transfer(Opcode::Recv, connection.as_raw_fd(), memory, bytes, 0, tag(RECEIVE, number)))
}

fn send(ring: &mut Ring, connection: &TcpStream, bytes: &[u8], number: usize) -> Outcome<()> {
    let (memory, count) = (bytes.as_ptr(), bytes.len() as u32);
    let sqe = transfer(Opcode::Send, connection.as_raw_fd(), memory, count, 0, tag(SEND, number));
    ring.push(Sqe { op_flags: libc::MSG_NOSIGNAL as u32, ..sqe })
}

/// Buffers for multishot receives, a power of two.
const BUFFERS: u16 = 512;

/// A piece that was received: its buffer and the unsent part of it.
type Piece = (u16, std::ops::Range<usize>);

/// Serves by one multishot RECV for each connection. The bytes are sent from the buffer that they are in, piece by
/// piece.
pub fn multishot(ring: &mut Ring, connections: &[TcpStream], work: &Echo) -> Outcome<()> {
    let mut buffers = ring.provide_buffers(BUFFERS, work.bytes)?;
    let mut pieces: Vec<VecDeque<Piece>> = vec![VecDeque::new(); connections.len()];
    for (number, connection) in connections.iter().enumerate() {
        receive_all(ring, connection, number)?;
    }
    let mut open = connections.len();
    while open > 0 {
        ring.submit_and_wait(1)?;
        while let Some(cqe) = ring.peek_cqe() {
            let number = cqe.user_data as u32 as usize;
            let queue = &mut pieces[number];
            if cqe.user_data >> 32 == SEND {
                sent(queue, &mut buffers, count("SEND", cqe.res)?);
            } else if cqe.flags & IORING_CQE_F_MORE == 0 && cqe.res <= 0 && cqe.res != -libc::ENOBUFS {
                expect(cqe.res == 0, || format!("a multishot RECV ended with {}", cqe.res))?;
                open -= 1;
                continue;
            } else {
                if cqe.res > 0 {
                    expect(cqe.flags & IORING_CQE_F_BUFFER != 0, || format!("{cqe:?} names no buffer"))?;
                    let id = (cqe.flags >> IORING_CQE_BUFFER_SHIFT) as u16;
                    queue.push_back((id, 0..cqe.res as usize));
                }
                if cqe.flags & IORING_CQE_F_MORE == 0 {
                    receive_all(ring, &connections[number], number)?;
                }
                // A SEND is in flight already: one at a time keeps the order.
                if cqe.res <= 0 || pieces[number].len() > 1 {
                    continue;
                }
            }
            if let Some((id, rest)) = pieces[number].front() {
                let bytes = &buffers.get(*id, rest.end)[rest.start..];
                send(ring, &connections[number], bytes, number)?;
            }
        }
        buffers.publish();
    }
    Ok(())
}

fn receive_all(ring: &mut Ring, connection: &TcpStream, number: usize) -> Outcome<()> {
    let sqe = transfer(Opcode::Recv, connection.as_raw_fd(), std::ptr::null(), 0, 0, tag(RECEIVE, number));
    ring.push(Sqe { ioprio: IORING_RECV_MULTISHOT as u16, flags: IOSQE_BUFFER_SELECT, ..sqe })
}

/// Records that `count` bytes of the first piece were sent. Returns its buffer once all of it is.
fn sent(queue: &mut VecDeque<Piece>, buffers: &mut Buffers, count: usize) {
    let Some((id, rest)) = queue.front_mut() else { return };
    rest.start += count;
    if rest.start >= rest.end {
        buffers.put(*id);
        queue.pop_front();
    }
}

/// Serves nonblocking sockets, edge-triggered: receives until there is no more, and sends each piece back.
pub fn epoll(connections: &[TcpStream], work: &Echo) -> Outcome<()> {
    let mut epoll = Epoll::new()?;
    for (number, connection) in connections.iter().enumerate() {
        connection.set_nonblocking(true)?;
        epoll.add(connection.as_raw_fd(), libc::EPOLLET, number as u64)?;
    }
    let mut buffer = vec![0u8; work.bytes as usize];
    let mut open = vec![true; connections.len()];
    while open.contains(&true) {
        for number in epoll.wait()? {
            let mut connection = &connections[number as usize];
            loop {
                match connection.read(&mut buffer) {
                    // The end may be reported more than once.
                    Ok(0) => {
                        open[number as usize] = false;
                        break;
                    }
                    // One message at a time is in flight: it always fits into the socket's buffer.
                    Ok(count) => connection.write_all(&buffer[..count])?,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(())
}

/// Serves by a thread for each connection, with blocking calls.
pub fn threads(connections: &[TcpStream], work: &Echo) -> Outcome<()> {
    let one = |mut connection: &TcpStream| -> std::io::Result<()> {
        let mut buffer = vec![0u8; work.bytes as usize];
        loop {
            match connection.read(&mut buffer)? {
                0 => return Ok(()),
                count => connection.write_all(&buffer[..count])?,
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = connections.iter().map(|connection| scope.spawn(move || one(connection))).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(ErrorKind::Other.into())));
        joined.collect::<std::io::Result<Vec<()>>>()
    })?;
    Ok(())
}
