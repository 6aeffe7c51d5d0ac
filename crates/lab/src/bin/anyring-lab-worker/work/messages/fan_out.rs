//! One thread accepts TCP connections and hands each, in turn, to one of several that serve them. A server receives 64
//! bytes, sends them back, and closes the connection. The client is a separate process, the same for all backends.

mod client;
mod peers;
mod rings;

pub use client::{connect, CLIENT};

use crate::outcome::{figure, Outcome};
use crate::peer::not_for;
use crate::ring::Ring;
use crate::work::echo::{figure_of, start_client};
use anyring_lab::message::{Door, FanOut, Measured, Program};
use std::net::{Ipv4Addr, TcpListener};

/// Bytes in each connection, there and back.
const BYTES: usize = 64;

/// Serves until the client has had all its connections. The figure is us for each, by the client's clock.
pub fn run(program: Program, door: Door, work: &FanOut) -> Outcome<Measured> {
    let ring = match program {
        Program::Uring => Some(Ring::new(door, rings::ENTRIES, 0)?),
        _ => None,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = u64::from(listener.local_addr()?.port());
    let client = start_client(CLIENT, &[port, u64::from(work.connections), u64::from(work.total)])?;
    let proof = match (program, ring) {
        (_, Some(ring)) => Some(rings::echo(door, ring, &listener, *work)?),
        (Program::Epoll, _) => peers::epoll(&listener, *work).map(|()| None)?,
        (Program::Threads, _) => peers::threads(&listener, *work).map(|()| None)?,
        (other, _) => return not_for(other),
    };
    Ok(figure(figure_of(client)?, proof))
}
