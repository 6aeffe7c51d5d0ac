//! A TCP server that echoes, and its client. The client is this executable again, in a process without preloaded
//! libraries.

mod client;
mod server;

pub use client::{client, talk, CLIENT};

use crate::outcome::{expect, figure, want_descriptors, Outcome, Stop};
use crate::peer::not_for;
use crate::ring::Ring;
use anyring_abi::{IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_SINGLE_ISSUER};
use anyring_lab::message::{Door, Echo, EchoStyle, Measured, Program};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// Serves until the client has received all its messages. The figure is ns for each, by the client's clock.
pub fn run(program: Program, door: Door, work: &Echo) -> Outcome<Measured> {
    want_descriptors(u64::from(work.connections) + 200)?;
    let ring = match program {
        Program::Uring => Some(ring(door, work)?),
        _ => None,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = u64::from(listener.local_addr()?.port());
    let numbers = [port, u64::from(work.connections), u64::from(work.bytes), work.messages];
    let client = start_client(CLIENT, &numbers)?;
    let connections: Vec<TcpStream> = (0..work.connections)
        .map(|_| {
            let (connection, _) = listener.accept()?;
            connection.set_nodelay(true)?;
            Ok(connection)
        })
        .collect::<std::io::Result<_>>()?;
    let proof = match (program, ring) {
        (_, Some(mut ring)) => {
            match work.style {
                EchoStyle::Multishot => server::multishot(&mut ring, &connections, work)?,
                EchoStyle::Plain | EchoStyle::DeferTaskrun => server::plain(&mut ring, &connections, work)?,
            }
            Some(ring.proof())
        }
        (Program::Epoll, _) => {
            server::epoll(&connections, work)?;
            None
        }
        (Program::Threads, _) => {
            server::threads(&connections, work)?;
            None
        }
        (other, _) => return not_for(other),
    };
    Ok(figure(figure_of(client)?, proof))
}

fn ring(door: Door, work: &Echo) -> Outcome<Ring> {
    let flags = match work.style {
        EchoStyle::Plain => 0,
        EchoStyle::DeferTaskrun | EchoStyle::Multishot => IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
    };
    Ring::new(door, (2 * work.connections).next_power_of_two().max(64), flags)
}

/// Starts a client of this kind, in a process without preloaded libraries.
pub fn start_client(kind: &str, numbers: &[u64]) -> Outcome<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(kind).args(numbers.iter().map(u64::to_string));
    // The client is the same for all backends.
    command.env_remove("LD_PRELOAD").env_remove("ANYRING_STATS").env_remove("ANYRING_BACKEND");
    Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?)
}

/// Waits for the client and returns its figure.
pub fn figure_of(client: Child) -> Outcome<f64> {
    let output = client.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    expect(output.status.success(), || format!("the client ended with {}: {}", output.status, text.trim()))?;
    text.trim().parse().map_err(|_| Stop::Failed(format!("the client said {text:?}")))
}
