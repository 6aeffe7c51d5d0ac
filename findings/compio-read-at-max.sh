#!/bin/bash
# Expected: ReadAt and WriteAt work at the given position (compio-driver, op), whichever driver runs them. u64::MAX is after the end of any file; pread(2) answers EINVAL.
# Seen: with the polling driver it is EINVAL. With the io_uring driver the read returns bytes from the file's current
# position and moves that position, and the write overwrites what follows there. An offset of -1 stands
# for the file's own position there (io_uring_prep_read(3)), and the crate passes each u64 through. File::read_at of
# compio 0.19 is built on it.
# Versions: compio-driver 0.12.5 (crates.io). Needs a kernel that serves io_uring. Seen 2026-11-29.
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
compio-driver = { version = "=0.12.5", default-features = false, features = ["io-uring", "polling"] }
compio-buf = "=0.8.3"
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use std::fs::File;

use compio_buf::{BufResult, IntoInner};
use compio_driver::op::{ReadAt, WriteAt};
use compio_driver::{DriverType, OpCode, Proactor, PushEntry};

type Answer = (Result<Vec<u8>, Option<i32>>, Result<usize, Option<i32>>, Vec<u8>);

/// Carries one operation out.
fn complete<T: OpCode + 'static>(proactor: &mut Proactor, op: T) -> BufResult<usize, T> {
    let mut entry = proactor.push(op);
    loop {
        match entry {
            PushEntry::Ready(result) => return result,
            PushEntry::Pending(key) => {
                proactor.poll(None).unwrap();
                entry = proactor.pop(key);
            }
        }
    }
}

fn look(proactor: &mut Proactor, path: &str) -> Answer {
    std::fs::write(path, b"0123456789").unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let buffer: Vec<u8> = Vec::with_capacity(4);
    let BufResult(result, op) = complete(proactor, ReadAt::new(file.try_clone().unwrap(), u64::MAX, buffer));
    let mut buffer = op.into_inner();
    let read = result.map_err(|error| error.raw_os_error()).map(|length| {
        // SAFETY: the operation has written `length` bytes to the buffer.
        unsafe { buffer.set_len(length) };
        buffer
    });
    let BufResult(result, _) = complete(proactor, WriteAt::new(file, u64::MAX, "xy"));
    (read, result.map_err(|error| error.raw_os_error()), std::fs::read(path).unwrap())
}

fn main() {
    let path = std::env::args().nth(1).unwrap();
    let seen = [DriverType::Poll, DriverType::IoUring].map(|driver| {
        let mut proactor = Proactor::builder().driver_type(driver).build().unwrap();
        assert_eq!(proactor.driver_type(), driver);
        let (read, written, file) = look(&mut proactor, &path);
        println!("{driver:?}: read at MAX {read:?}, write at MAX {written:?}, file {}", String::from_utf8_lossy(&file));
        (read, written, file)
    });
    let expected: [Answer; 2] = [
        (Err(Some(22)), Err(Some(22)), b"0123456789".to_vec()),
        (Ok(b"0123".to_vec()), Ok(2), b"0123xy6789".to_vec()),
    ];
    assert_eq!(seen, expected, "the behaviour has changed");
}
RUST
export CARGO_TARGET_DIR="$tmp/target"
nice -n 19 cargo build -q --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check" "$tmp/file"
