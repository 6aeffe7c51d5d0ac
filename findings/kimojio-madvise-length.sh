#!/bin/bash
# Expected: operations::madvise takes its length as u64 and does what madvise(2) does, by its documentation.
# Seen: the length is cut to 32 bits, without an error. MADV_DONTNEED on a mapping of 4 GiB succeeds and does nothing,
# as the request's length is 0: the page keeps its data, where madvise(2) gives a page of zeroes. io_uring has another
# field for 64-bit lengths (io_uring_prep_madvise64(3)), which the crate does not use. operations::fadvise cuts its
# length in the same way.
# Versions: kimojio 0.19.0 (crates.io). Needs a kernel that serves io_uring, and 4 GiB of address space (not of memory).
# Seen 2026-11-29.
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
kimojio = { version = "=0.19.0", default-features = false }
rustix = { version = "=1.1.4", features = ["fs"] }
libc = "=0.2.186"
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use kimojio::operations;
use rustix::fs::Advice;

const LENGTH: usize = 4 << 30;

/// A new mapping of 4 GiB whose first byte is set.
fn mapping() -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping disturbs nothing.
    unsafe {
        let address = libc::mmap(std::ptr::null_mut(), LENGTH, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(address, libc::MAP_FAILED);
        let address = address.cast::<u8>();
        address.write(b'x');
        address
    }
}

fn main() {
    let by_call = mapping();
    // SAFETY: the mappings are used by their addresses only.
    let called = unsafe { libc::madvise(by_call.cast(), LENGTH, libc::MADV_DONTNEED) };
    let by_ring = mapping() as usize;
    let advised = kimojio::run(0, async move {
        operations::madvise(by_ring as *const _, LENGTH as u64, Advice::DontNeed).await.is_ok()
    });
    let advised = advised.unwrap().unwrap();
    // SAFETY: the mappings are alive.
    let left = unsafe { (by_call.read_volatile(), (by_ring as *const u8).read_volatile()) };
    println!("madvise(2) of 4 GiB: {called}, first byte {}; kimojio: ok {advised}, first byte {}", left.0, left.1);
    assert_eq!((called, advised, left), (0, true, (0, b'x')), "the behaviour has changed");
}
RUST
export CARGO_TARGET_DIR="$tmp/target"
nice -n 19 cargo build -q --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check"
