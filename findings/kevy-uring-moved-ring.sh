#!/bin/bash
# Expected: a ring works in the thread that it was moved to. IoUring is Send, so it can be transferred across threads
# (std::marker::Send). By the crate's source, Send is part of its public contract, and moving a ring to another
# thread is sound.
# Seen: only the thread that made a ring can submit to it. new() registers the ring with that thread
# (io_uring_register(2), IORING_REGISTER_RING_FDS), and each call then names it by its index there. That index has a
# meaning in that thread only. A thread without rings gets EINVAL. In a thread that has a ring of its own, the index
# names that other ring, so the call enters the wrong one: it returns Ok(0), and the request is never submitted.
# Versions: kevy-uring 7.0.0 (crates.io; Rust 1.95 builds it, although it asks for 1.97). Needs a kernel from 5.18 on
# that serves io_uring. Seen 2026-11-30.
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
kevy-uring = "=7.0.0"
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use kevy_uring::IoUring;

/// Submits a no-op: its result or errno, and the completions that came.
fn submit(ring: &mut IoUring) -> (Result<u32, Option<i32>>, u32) {
    assert!(ring.prep_nop(7));
    let submitted = ring.submit_and_wait(0).map_err(|error| error.raw_os_error());
    (submitted, ring.for_each_completion(|_| ()))
}

/// A ring that another thread has made.
fn moved_here() -> IoUring {
    std::thread::spawn(|| IoUring::new(8).unwrap()).join().unwrap()
}

fn main() {
    let without = submit(&mut moved_here());
    println!("moved to a thread without rings: submitted {:?}, completions {}", without.0, without.1);
    let mut own = IoUring::new(8).unwrap();
    let beside = submit(&mut moved_here());
    println!("moved to a thread with a ring: submitted {:?}, completions {}", beside.0, beside.1);
    let at_home = submit(&mut own);
    println!("that thread's own ring: submitted {:?}, completions {}", at_home.0, at_home.1);
    let expected = ((Err(Some(22)), 0), (Ok(0), 0), (Ok(1), 1));
    assert_eq!((without, beside, at_home), expected, "the behaviour has changed");
}
RUST
export CARGO_TARGET_DIR="$tmp/target"
nice -n 19 cargo build -q --ignore-rust-version --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check"
