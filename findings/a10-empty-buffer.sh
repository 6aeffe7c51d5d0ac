#!/bin/bash
# Expected: AsyncFd::write_all_vectored writes all of its buffers, and write_all all of its buffer, by their
# documentation. A buffer without bytes changes nothing.
# Seen: write_all_vectored takes everything as written once its last buffer has no bytes left. If that buffer is empty
# from the start, the first short write ends it with Ok(()). Here a pipe has room for 4,096 of 8,192 bytes, and the
# other half is lost; with one byte in the last buffer everything arrives. write_all of an empty buffer is the error
# WriteZero, where write_all of the standard library is Ok.
# Versions: a10 0.4.3 (crates.io). Needs a kernel that serves io_uring. Seen 2026-11-30.
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
a10 = "=0.4.3"
libc = "=0.2.186"
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use a10::{AsyncFd, Ring};

fn wait<T>(ring: &mut Ring, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
        ring.poll(Some(Duration::from_millis(100))).unwrap();
    }
}

/// Writes two buffers to a pipe of 4,096 bytes whose reader reads to the end: the result, and the bytes that arrived.
fn write(ring: &mut Ring, buffers: [Vec<u8>; 2]) -> (Result<(), ErrorKind>, usize) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    // SAFETY: this changes only the size of the pipe.
    assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) }, 4096);
    let reading = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes.len()
    });
    let writer = AsyncFd::new(writer.into(), ring.sq());
    let result = wait(ring, writer.write_all_vectored(buffers)).map_err(|error| error.kind());
    wait(ring, writer.close()).unwrap();
    (result, reading.join().unwrap())
}

fn main() {
    let mut ring = Ring::new().unwrap();
    let one = write(&mut ring, [vec![7; 8192], vec![7]]);
    println!("buffers of 8192 and 1 bytes: {:?}, {} bytes arrived", one.0, one.1);
    let none = write(&mut ring, [vec![7; 8192], vec![]]);
    println!("buffers of 8192 and 0 bytes: {:?}, {} bytes arrived", none.0, none.1);

    let mut null = std::fs::File::create("/dev/null").unwrap();
    let standard = null.write_all(&[]).map_err(|error| error.kind());
    let null = AsyncFd::new(null.into(), ring.sq());
    let empty = wait(&mut ring, null.write_all(Vec::new())).map_err(|error| error.kind());
    println!("write_all of no bytes: std {standard:?}, a10 {empty:?}");

    assert_eq!((one, none), ((Ok(()), 8193), (Ok(()), 4096)), "the behaviour has changed");
    assert_eq!((standard, empty), (Ok(()), Err(ErrorKind::WriteZero)), "the behaviour has changed");
}
RUST
export CARGO_TARGET_DIR="$tmp/target"
nice -n 19 cargo build -q --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check"
