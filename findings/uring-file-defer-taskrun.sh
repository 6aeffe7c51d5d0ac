#!/bin/bash
# Expected: UringCfg::defer_taskrun makes a ring with deferred task work. Its documentation asks for Linux 6.1
# and for coop_taskrun.
# Seen: with coop_taskrun or without, Uring::new fails with EINVAL, so the option never works. The kernel asks for
# another flag, IORING_SETUP_SINGLE_ISSUER (io_uring_setup(2)). UringCfg has no field for it, and the crate's two threads, one that submits and one that waits, could not use such a ring.
# The documentation also says that `sqpoll` needs CAP_SYS_NICE, which no kernel from 5.13 on asks for.
# Versions: uring-file 0.9.0 (crates.io). Needs a kernel from 6.1 on that serves io_uring. Seen 2026-11-29.
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
io-uring = "=0.7.11"
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use uring_file::uring::{Uring, UringCfg};

fn main() {
    let kernel: std::io::Result<io_uring::IoUring> =
        io_uring::IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(8);
    println!("kernel, DEFER_TASKRUN with SINGLE_ISSUER: {:?}", kernel.as_ref().err());
    assert!(kernel.is_ok(), "this kernel lacks DEFER_TASKRUN");
    for (coop_taskrun, defer_taskrun) in [(true, false), (false, true), (true, true)] {
        let ring = Uring::new(UringCfg { coop_taskrun, defer_taskrun, ..UringCfg::default() });
        let error = ring.err().and_then(|error| error.raw_os_error());
        println!("Uring::new, coop_taskrun {coop_taskrun}, defer_taskrun {defer_taskrun}: errno {error:?}");
        assert_eq!(error, defer_taskrun.then_some(22), "the behaviour has changed");
    }
}
RUST
export CARGO_TARGET_DIR="$tmp/target"
nice -n 19 cargo build -q --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check"
