#!/bin/bash
# Expected: IoUring::write writes all of the data, by its documentation. Its result is io::Result<()>, so Ok means that all
# is written.
# Seen: a short write is Ok(()). The completion's count is dropped, as nothing in the result could carry it. Here the
# limit of the file's size (RLIMIT_FSIZE) lets 50 of 100 bytes through, which write(2) reports as 50. IoUring::read,
# which is documented to read as many bytes as asked, returns those 50 for 100 without an error, too.
# Versions: uring-fs 1.4.0, on io-uring 0.6 (crates.io). Needs a kernel that serves io_uring. Seen 2026-11-29.
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
uring-fs = "=1.4.0"
libc = "=0.2.180"
pollster = "=0.4.0"
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use std::fs::File;

/// Limits the size of the files that this process writes.
fn limit(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
}

fn main() {
    let path = std::env::args().nth(1).unwrap();
    let ring = uring_fs::IoUring::new().unwrap();
    let file = File::create(&path).unwrap();
    limit(50);
    let written = pollster::block_on(ring.write(&file, vec![7; 100]));
    limit(libc::RLIM_INFINITY);
    let length = file.metadata().unwrap().len();
    let read = pollster::block_on(ring.read(&File::open(&path).unwrap(), 100)).unwrap().len();
    println!("write of 100 bytes: {written:?}, the file has {length}; read of exactly 100 bytes: {read} bytes");
    assert!(written.is_ok() && length == 50 && read == 50, "the behaviour has changed");
}
RUST
export CARGO_TARGET_DIR="$tmp/target"
nice -n 19 cargo build -q --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check" "$tmp/file"
