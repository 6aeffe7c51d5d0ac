#!/bin/bash
# Expected: io_uring_buf_ring_available answers -ENOENT for a group of buffers that does not exist. So say the crate's
# documentation and liburing's manual page.
# Seen: it returns a number of buffers. liburing's header returns each result of io_uring_buf_ring_head that is not 0;
# the crate, which translates that header to Rust, returns it only if it is positive, and errors are negative. So after
# the group was unregistered, a caller reads that all four buffers are still available. io_uring_buf_ring_head of the
# same crate, which is liburing's C code, answers -ENOENT.
# Versions: axboe-liburing 2.15.3 (crates.io), built with libclang 14.0.6 (Debian 12). Needs make, a C compiler, and a
# kernel from 6.8 on that serves io_uring. Seen 2026-11-29.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
(cd "$tmp" && apt-get download -q=2 -o APT::Sandbox::User=root \
    libclang1-14=1:14.0.6-12 libclang-common-14-dev=1:14.0.6-12 libllvm14=1:14.0.6-12 &&
    for package in ./*.deb; do dpkg-deb -x "$package" clang; done)
export LIBCLANG_PATH=$tmp/clang/usr/lib/llvm-14/lib
export LD_LIBRARY_PATH=$LIBCLANG_PATH:$tmp/clang/usr/lib/x86_64-linux-gnu
export BINDGEN_EXTRA_CLANG_ARGS="-resource-dir $LIBCLANG_PATH/clang/14.0.6"
mkdir "$tmp/src"
cat > "$tmp/Cargo.toml" <<'TOML'
[package]
name = "check"
version = "0.0.0"
edition = "2021"
[profile.dev]
debug = 0
[dependencies]
axboe-liburing = "=2.15.3"
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use liburing_rs::*;

#[repr(C, align(4096))]
struct Page([u8; 4096]);

const GROUP: u16 = 7;

fn main() {
    let mut memory = Box::new(Page([0; 4096]));
    let mut buffers = [[0u8; 64]; 4];
    let group = (&raw mut *memory).cast::<io_uring_buf_ring>();
    // SAFETY: all zeroes are valid for these structures of C; the memory outlives the ring.
    unsafe {
        let mut ring: io_uring = std::mem::zeroed();
        assert_eq!(io_uring_queue_init(4, &mut ring, 0), 0);
        let mut registration: io_uring_buf_reg = std::mem::zeroed();
        registration.ring_addr = group as u64;
        registration.ring_entries = 4;
        registration.bgid = GROUP;
        assert_eq!(io_uring_register_buf_ring(&mut ring, &mut registration, 0), 0);
        io_uring_buf_ring_init(group);
        for (index, buffer) in buffers.iter_mut().enumerate() {
            let mask = io_uring_buf_ring_mask(4);
            io_uring_buf_ring_add(group, buffer.as_mut_ptr().cast(), 64, index as u16, mask, index as i32);
        }
        io_uring_buf_ring_advance(group, 4);
        let registered = io_uring_buf_ring_available(&mut ring, group, GROUP);
        assert_eq!(io_uring_unregister_buf_ring(&mut ring, GROUP.into()), 0);
        let mut head = 0;
        let error = io_uring_buf_ring_head(&mut ring, GROUP.into(), &mut head);
        let unregistered = io_uring_buf_ring_available(&mut ring, group, GROUP);
        println!("registered: available {registered}; unregistered: head {error}, available {unregistered}");
        assert_eq!((registered, error, unregistered), (4, -2, 4), "the behaviour has changed");
        io_uring_queue_exit(&mut ring);
    }
}
RUST
export CARGO_TARGET_DIR="$tmp/target"
nice -n 19 cargo build -q --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check"
