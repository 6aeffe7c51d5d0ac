#!/bin/bash
# Expected: a RegisteredFile is registered as long as it lives. Uring::register documents one limit: an error
# once too many files are registered.
# Seen: the limit counts all registrations of the ring's life. RegisteredFile has no Drop, and slots are numbered by a
# counter that only grows: the 4,097th call fails although no RegisteredFile is left. A dropped registration also keeps
# its file open in the kernel: the reader of a pipe gets no end of file after writer and registration are gone.
# Versions: uring-file 0.9.0 (crates.io). Needs a kernel from 5.19 on that serves io_uring. Seen 2026-11-29.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/src"
cat > "$tmp/Cargo.toml" <<'TOML'
[package]
name = "check"
version = "0.0.0"
edition = "2021"
[profile.dev]
debug = 0
[dependencies]
uring-file = "=0.9.0"
libc = "=0.2.180"
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use std::fs::File;
use std::os::fd::AsRawFd;
use uring_file::uring::{Uring, UringCfg};

/// True if the pipe has no writer left.
fn hung_up(reader: &impl AsRawFd) -> bool {
    let mut entry = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `entry` outlives the call.
    assert!(unsafe { libc::poll(&mut entry, 1, 1000) } >= 0);
    entry.revents & libc::POLLHUP != 0
}

fn main() {
    let ring = Uring::new(UringCfg::default()).unwrap();

    let (plain_reader, plain_writer) = std::io::pipe().unwrap();
    drop(plain_writer);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(ring.register(&writer).unwrap());
    drop(writer);
    let ended = (hung_up(&plain_reader), hung_up(&reader));
    println!("end of file: plain pipe {}, pipe that was registered {}", ended.0, ended.1);
    assert_eq!(ended, (true, false), "the behaviour has changed");

    let file = File::open("/dev/null").unwrap();
    let mut registrations = 1;
    let error = loop {
        match ring.register(&file) {
            Ok(registered) => drop(registered),
            Err(error) => break error,
        }
        registrations += 1;
        assert!(registrations < 100_000, "the behaviour has changed");
    };
    println!("after {registrations} registrations, none of them alive: {error}");
    assert_eq!(registrations, 4096, "the behaviour has changed");
}
RUST
export CARGO_TARGET_DIR="$tmp/target"
nice -n 19 cargo build -q --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check"
