#!/bin/bash
# Expected: RecvMulti receives into the buffers of a provided group, and SqeFlags::IO_HARDLINK cancels the rest of a
# chain if one of its operations fails. So says the documentation of the crate.
# Seen: RecvMulti fails with EINVAL. Its build() sets IOSQE_BUFFER_SELECT, but push() overwrites all flags of an
# entry, and so does push_with_flags(). The flag must be given again there, which no document says. RecvMsgMulti is
# built alike. IO_HARDLINK does the reverse of what the crate says: the chain goes on after a failure, as
# io_uring_enter(2) lays down. IO_LINK is the flag that cancels.
# Versions: lio-uring 0.3.1 (crates.io), built with libclang 14.0.6 (Debian 12). Needs make, gcc, and a kernel from
# 6.0 on that serves io_uring. Seen 2026-11-30.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
(cd "$tmp" && apt-get download -q=2 -o APT::Sandbox::User=root \
    libclang1-14=1:14.0.6-12 libclang-common-14-dev=1:14.0.6-12 libllvm14=1:14.0.6-12 &&
    for package in ./*.deb; do dpkg-deb -x "$package" clang; done)
export LIBCLANG_PATH=$tmp/clang/usr/lib/llvm-14/lib
export LD_LIBRARY_PATH=$LIBCLANG_PATH:$tmp/clang/usr/lib/x86_64-linux-gnu
export BINDGEN_EXTRA_CLANG_ARGS="-resource-dir $LIBCLANG_PATH/clang/14.0.6"
# The build runs a compiler by the name of clang. Any C compiler does.
mkdir "$tmp/bin" "$tmp/src"
ln -s "$(command -v gcc)" "$tmp/bin/clang"
export PATH=$tmp/bin:$PATH
cat > "$tmp/Cargo.toml" <<'TOML'
[package]
name = "check"
version = "0.0.0"
edition = "2021"
[profile.dev]
debug = 0
[dependencies]
lio-uring = "=0.3.1"
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use lio_uring::operation::{Nop, ProvideBuffers, Read, RecvMulti};
use lio_uring::{Entry, LioUring, SqeFlags};

const GROUP: u16 = 1;

/// Submits a request: its result, and whether it has used a provided buffer.
fn complete(ring: &mut LioUring, entry: Entry, flags: Option<SqeFlags>) -> (i32, bool) {
    // SAFETY: what the entries point to outlives the ring's requests.
    unsafe {
        match flags {
            None => ring.push(entry, 1).unwrap(),
            Some(flags) => ring.push_with_flags(entry, 1, flags).unwrap(),
        }
    }
    ring.submit().unwrap();
    let completion = ring.wait().unwrap();
    (completion.result(), completion.buffer_id().is_some())
}

/// Submits a read that fails, linked to a no-op: the results of both.
fn chain(link: SqeFlags) -> (i32, i32) {
    let mut ring = LioUring::new(8).unwrap();
    let mut byte = [0u8; 1];
    // SAFETY: the read fails, so nothing uses the byte after its completion.
    unsafe {
        ring.push_with_flags(Read::new(-1, byte.as_mut_ptr(), 1).build(), 1, link).unwrap();
        ring.push(Nop::new().build(), 2).unwrap();
    }
    ring.submit().unwrap();
    let mut results = [0; 2];
    for _ in 0..2 {
        let completion = ring.wait().unwrap();
        results[completion.user_data() as usize - 1] = completion.result();
    }
    (results[0], results[1])
}

fn main() {
    let mut memory = vec![0u8; 4 * 64];
    let (socket, mut peer) = UnixStream::pair().unwrap();
    peer.write_all(b"hello").unwrap();
    let mut ring = LioUring::new(8).unwrap();
    let provided = complete(&mut ring, ProvideBuffers::new(memory.as_mut_ptr(), 64, 4, GROUP, 0).build(), None);
    let recv = || RecvMulti::new(socket.as_raw_fd(), GROUP).build();
    let pushed = complete(&mut ring, recv(), None);
    let with_flag = complete(&mut ring, recv(), Some(SqeFlags::BUFFER_SELECT));
    println!("ProvideBuffers: {}; RecvMulti by push: {}, a buffer {}", provided.0, pushed.0, pushed.1);
    println!("RecvMulti, BUFFER_SELECT given again: {}, a buffer {}", with_flag.0, with_flag.1);
    drop(ring);

    let chains = [SqeFlags::IO_LINK, SqeFlags::IO_HARDLINK].map(chain);
    println!("after a failed read ({}): IO_LINK {}, IO_HARDLINK {}", chains[0].0, chains[0].1, chains[1].1);

    let expected = ((0, false), (-22, false), (5, true));
    assert_eq!((provided, pushed, with_flag), expected, "the behaviour has changed");
    assert_eq!(chains, [(-9, -125), (-9, 0)], "the behaviour has changed");
}
RUST
export CARGO_TARGET_DIR="$tmp/target"
nice -n 19 cargo build -q --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check"
