//! Fan-out servers without io_uring. One has an epoll set in each thread, with a queue and an eventfd between them.
//! The other has a blocking acceptor with a pool of blocking threads.

use super::super::queue::WithEventfd;
use super::super::Channel;
use super::BYTES;
use crate::outcome::{Outcome, Stop};
use crate::peer::epoll::Epoll;
use anyring_lab::message::FanOut;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::sync::{mpsc, Mutex};

/// The value that ends a stream of descriptors.
const NO_MORE: u64 = u64::MAX;
/// The data of the eventfd in a worker's set. Connections have their descriptor's number.
const EVENT: u64 = 0;

/// Accepts all connections, and hands each to the next worker: puts its number into the queue and signals the
/// eventfd.
pub fn epoll(listener: &TcpListener, work: FanOut) -> Outcome<()> {
    let channels = (0..work.workers).map(|_| WithEventfd::new(1)).collect::<Outcome<Vec<_>>>()?;
    listener.set_nonblocking(true)?;
    let mut set = Epoll::new()?;
    set.add(listener.as_raw_fd(), 0, 0)?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = channels.iter().map(|channel| scope.spawn(|| echo_set(channel))).collect();
        let mut senders = channels.iter().map(Channel::sender).collect::<Outcome<Vec<_>>>()?;
        let mut hand = |number: usize, what: u64| {
            let turn = number % channels.len();
            channels[turn].send(&mut senders[turn], what, 0)
        };
        let mut accepted = 0;
        while accepted < work.total as usize {
            set.wait()?.count();
            loop {
                match listener.accept() {
                    Ok((stream, _)) => hand(accepted, stream.into_raw_fd() as u64)?,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
                accepted += 1;
            }
        }
        (0..channels.len()).try_for_each(|number| hand(number, NO_MORE))?;
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| Stop::from("a worker panicked"))?)
    })
}

/// Takes connections from the queue and serves all ready ones, until no more come and all are closed.
fn echo_set(channel: &WithEventfd) -> Outcome<()> {
    let mut set = channel.receiver()?;
    let mut open: HashMap<u64, (TcpStream, Vec<u8>)> = HashMap::new();
    let mut more = true;
    while more || !open.is_empty() {
        let ready: Vec<u64> = set.wait()?.collect();
        for number in ready {
            if number == EVENT {
                channel.drain(&mut |fd, _| {
                    if fd == NO_MORE {
                        more = false;
                        return Ok(());
                    }
                    // SAFETY: the acceptor gave this descriptor up with `into_raw_fd`, to the queue's one reader.
                    let stream = unsafe { TcpStream::from_raw_fd(fd as i32) };
                    stream.set_nonblocking(true)?;
                    set.add(fd as i32, libc::EPOLLET, fd)?;
                    open.insert(fd, (stream, Vec::new()));
                    Ok(())
                })?;
                continue;
            }
            let Some((stream, received)) = open.get_mut(&number) else { continue };
            let complete = match echo(stream, received) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => false,
                other => other.map(|()| true)?,
            };
            if complete {
                open.remove(&number);
            }
        }
    }
    Ok(())
}

/// Receives until the message is complete, and sends it back: it always fits into the socket's buffer.
fn echo(stream: &mut TcpStream, received: &mut Vec<u8>) -> std::io::Result<()> {
    let mut bytes = [0; BYTES];
    while received.len() < BYTES {
        match stream.read(&mut bytes)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => received.extend_from_slice(&bytes[..count]),
        }
    }
    stream.write_all(received)
}

/// Serves by a thread that accepts, and a pool of threads. Each of these takes the next connection after serving one.
pub fn threads(listener: &TcpListener, work: FanOut) -> Outcome<()> {
    let (hand, handed) = mpsc::channel::<TcpStream>();
    let handed = Mutex::new(handed);
    let serve = || -> Outcome<()> {
        loop {
            let next = handed.lock().map_err(|_| Stop::from("another thread panicked"))?.recv();
            match next {
                Ok(mut stream) => echo(&mut stream, &mut Vec::with_capacity(BYTES))?,
                Err(_) => return Ok(()),
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..work.workers).map(|_| scope.spawn(serve)).collect();
        for _ in 0..work.total {
            let (stream, _) = listener.accept()?;
            hand.send(stream).map_err(|_| Stop::from("no thread is left that serves"))?;
        }
        drop(hand);
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| Stop::from("a worker panicked"))?)
    })
}
