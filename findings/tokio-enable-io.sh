#!/bin/bash
# Expected: a runtime reads files by io_uring only if it was asked to. The documentation of tokio::fs::read names three
# conditions: the flag tokio_unstable, the feature io-uring, and a call of Builder::enable_io_uring.
# Seen: the third condition does not exist. enable_io() alone, or enable_all(), turns io_uring on. So once any crate of
# a build enables the feature, each runtime with enable_io() changes, and its answers do too: a read of an empty FIFO
# that was opened with O_NONBLOCK is WouldBlock without rings, and waits for data with them.
# Versions: tokio 1.54.1 (crates.io). Needs a kernel that serves io_uring. Seen 2026-11-29.
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
tokio = { version = "=1.54.1", features = ["rt", "fs", "io-util", "time", "sync", "io-uring"] }
libc = "=0.2.186"
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use std::io::Write;
use std::time::Duration;
use tokio::fs::OpenOptions;
use tokio::io::AsyncReadExt;
use tokio::runtime::Builder;

/// Reads an empty FIFO. A read that waits gets two bytes, after a while.
async fn read(path: &str) -> String {
    let mut options = OpenOptions::new();
    let mut fifo = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path).await.unwrap();
    let mut buffer = [0; 8];
    let mut read = std::pin::pin!(fifo.read(&mut buffer));
    match tokio::time::timeout(Duration::from_secs(1), &mut read).await {
        Ok(result) => format!("{:?}", result.map_err(|error| error.kind())),
        Err(_) => {
            std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all(b"ab").unwrap();
            format!("waits, then {:?}", read.await.map_err(|error| error.kind()))
        }
    }
}

fn main() {
    let path = std::env::args().nth(1).unwrap();
    let rings = || {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        targets.filter(|target| target.as_os_str() == "anon_inode:[io_uring]").count()
    };
    let mut seen = Vec::new();
    for (name, io) in [("enable_time()", false), ("enable_time(), enable_io()", true)] {
        let mut builder = Builder::new_current_thread();
        builder.enable_time();
        if io {
            builder.enable_io();
        }
        let runtime = builder.build().unwrap();
        let answer = runtime.block_on(read(&path));
        println!("{name}: rings {}; read of the empty FIFO: {answer}", rings());
        seen.push((rings(), answer));
    }
    let expected = [(0, "Err(WouldBlock)".to_string()), (1, "waits, then Ok(2)".to_string())];
    assert_eq!(seen, expected, "the behaviour has changed");
}
RUST
mkfifo "$tmp/fifo"
export CARGO_TARGET_DIR="$tmp/target" RUSTFLAGS="--cfg tokio_unstable"
nice -n 19 cargo build -q --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check" "$tmp/fifo"
