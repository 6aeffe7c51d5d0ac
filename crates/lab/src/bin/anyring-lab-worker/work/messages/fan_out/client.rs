//! The fan-out client: one thread, epoll, a number of connections at the same time. Each carries one message.

use super::BYTES;
use crate::outcome::{expect, Outcome, Stop};
use crate::peer::epoll::Epoll;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Instant;

/// The first argument that makes the worker this client.
pub const CLIENT: &str = "connect-client";

struct Connection {
    stream: TcpStream,
    sent: [u8; BYTES],
    received: Vec<u8>,
}

/// PORT CONNECTIONS TOTAL. Returns us for each connection, from before its connect(2) until its message has come
/// back.
pub fn connect(numbers: &[u64]) -> Outcome<f64> {
    let [port, connections, total] = *numbers else { return Err("PORT CONNECTIONS TOTAL".into()) };
    let mut epoll = Epoll::new()?;
    let mut open = Vec::new();
    let start = Instant::now();
    let mut begun = connections.min(total);
    for slot in 0..begun {
        open.push(Connection::new(port as u16, slot, slot, &epoll)?);
    }
    let mut ended = 0;
    while ended < total {
        let ready: Vec<u64> = epoll.wait()?.collect();
        for slot in ready {
            let connection = &mut open[slot as usize];
            if !connection.receive()? {
                continue;
            }
            ended += 1;
            if begun < total {
                *connection = Connection::new(port as u16, begun, slot, &epoll)?;
                begun += 1;
            } else {
                epoll.remove(connection.stream.as_raw_fd())?;
            }
        }
    }
    Ok(start.elapsed().as_nanos() as f64 / 1000.0 / total as f64)
}

impl Connection {
    /// Connects and sends by blocking calls: one message always fits into the socket's buffer.
    fn new(port: u16, number: u64, slot: u64, epoll: &Epoll) -> Outcome<Self> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        let mut sent = [number as u8; BYTES];
        sent[..8].copy_from_slice(&number.to_ne_bytes());
        stream.write_all(&sent)?;
        epoll.add(stream.as_raw_fd(), 0, slot)?;
        Ok(Connection { stream, sent, received: Vec::new() })
    }

    /// Receives the available bytes. True if the message is complete.
    fn receive(&mut self) -> Outcome<bool> {
        let mut bytes = [0; BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Err("the server hung up".into()),
            Ok(count) => self.received.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Stop::from(error)),
        }
        let complete = self.received.len() >= BYTES;
        if complete {
            expect(self.received == self.sent, || "what came back is not what was sent".to_owned())?;
        }
        Ok(complete)
    }
}
