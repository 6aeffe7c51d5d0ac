//! The echo client: one thread, epoll, a message in flight on each connection.

use crate::outcome::{expect, Outcome, Stop};
use crate::peer::epoll::Epoll;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::Instant;

/// The first argument that makes the worker a client.
pub const CLIENT: &str = "echo-client";

struct Connection {
    stream: TcpStream,
    sent: Vec<u8>,
    received: Vec<u8>,
    left: u64,
}

/// Runs a client with these numbers: prints its figure, or the failure.
pub fn client(words: &[String], measure: impl Fn(&[u64]) -> Outcome<f64>) -> ExitCode {
    let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
    match measure(&numbers) {
        Ok(figure) => {
            println!("{figure}");
            ExitCode::SUCCESS
        }
        Err(stop) => {
            println!("{stop:?}");
            ExitCode::FAILURE
        }
    }
}

/// PORT CONNECTIONS BYTES MESSAGES. Returns ns for each message.
pub fn talk(numbers: &[u64]) -> Outcome<f64> {
    let [port, connections, bytes, messages] = *numbers else {
        return Err("PORT CONNECTIONS BYTES MESSAGES".into());
    };
    let (port, bytes) = (port as u16, bytes as usize);
    let each = messages.div_ceil(connections);
    let mut epoll = Epoll::new()?;
    let mut all = Vec::new();
    for number in 0..connections {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        epoll.add(stream.as_raw_fd(), 0, number)?;
        all.push(Connection { stream, sent: vec![number as u8; bytes], received: Vec::new(), left: each + 1 });
    }
    // One message over each connection before the clock starts.
    all.iter_mut().try_for_each(Connection::send)?;
    finish(&mut epoll, &mut all, connections, each)?;
    let start = Instant::now();
    all.iter_mut().try_for_each(Connection::send)?;
    finish(&mut epoll, &mut all, each * connections, 0)?;
    Ok(start.elapsed().as_nanos() as f64 / (each * connections) as f64)
}

/// Receives this many echoes. A connection sends again while it has more than `until` messages left.
fn finish(epoll: &mut Epoll, all: &mut [Connection], mut echoes: u64, until: u64) -> Outcome<()> {
    while echoes > 0 {
        for number in epoll.wait()? {
            let connection = &mut all[number as usize];
            if connection.receive()? {
                echoes -= 1;
                if connection.left > until {
                    connection.send()?;
                }
            }
        }
    }
    Ok(())
}

impl Connection {
    /// Sends another message by a blocking call: one message always fits into the socket's buffer.
    fn send(&mut self) -> Outcome<()> {
        let stamp = self.left.to_ne_bytes();
        for chunk in self.sent.chunks_exact_mut(64) {
            chunk[..8].copy_from_slice(&stamp);
        }
        self.received.clear();
        self.left -= 1;
        Ok(self.stream.write_all(&self.sent)?)
    }

    /// Receives the available part of the echo. True if it is complete.
    fn receive(&mut self) -> Outcome<bool> {
        let have = self.received.len();
        self.received.resize(self.sent.len(), 0);
        let count = match self.stream.read(&mut self.received[have..]) {
            Ok(0) => return Err("the server hung up".into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(error) => return Err(Stop::from(error)),
        };
        self.received.truncate(have + count);
        let complete = self.received.len() == self.sent.len();
        if complete {
            expect(self.received == self.sent, || "the echo is not what was sent".to_owned())?;
        }
        Ok(complete)
    }
}
