#!/bin/bash
# Expected: api::write and api::read are equivalent to write(2) and read(2), by their documentation. So each continues
# where the one before has ended, as the backend of the crate that uses poll does.
# Seen: with io_uring, the default, each call works at offset 0 of a file. The second write replaces the first, and a
# loop of reads gets the same start of the file again and again, and never its end. The crate leaves the request's
# offset at 0; -1 stands for the file position (io_uring_prep_read(3)). Pipes and sockets have no offset, so they work.
# Versions: lio 0.4.1 (crates.io), built with libclang 14.0.6 (Debian 12). Needs make, gcc, and a kernel that serves
# io_uring. Seen 2026-11-30.
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
lio = "=0.4.1"
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd};

use std::time::Duration;

use lio::api::io::Receiver;
use lio::api::resource::Resource;
use lio::{api, Lio};

fn resource(file: File) -> Resource {
    // SAFETY: the descriptor is open, and now the resource's.
    unsafe { Resource::from_raw_fd(file.into_raw_fd()) }
}

/// Runs the loop until the operation has ended.
fn wait<T>(lio: &Lio, mut operation: Receiver<T>) -> T {
    loop {
        lio.run_timeout(Duration::from_millis(20)).unwrap();
        if let Some(result) = operation.recv_timeout(Duration::ZERO) {
            return result;
        }
    }
}

/// Writes twice, and reads twice: the file, and what the reads got.
fn look(lio: &Lio, path: &str) -> (String, Vec<String>) {
    let file = resource(File::create(path).unwrap());
    for text in ["one ", "two "] {
        let write = api::write(&file, text.as_bytes().to_vec()).with_lio(lio).send();
        assert_eq!(wait(lio, write).0.unwrap(), 4);
    }
    let contents = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, "aaaabbbb").unwrap();
    let file = resource(File::open(path).unwrap());
    let mut reads = Vec::new();
    for _ in 0..3 {
        let read = api::read(&file, vec![0; 4]).with_lio(lio).send();
        let (length, buffer) = wait(lio, read);
        reads.push(String::from_utf8_lossy(&buffer[..length.unwrap() as usize]).into_owned());
    }
    (contents, reads)
}

fn main() {
    let path = std::env::args().nth(1).unwrap();
    let poll = look(&Lio::new_with_backend(lio::backends::pollingv2::Poller::new(), 8).unwrap(), &path);
    println!("polling: file {:?}; reads of aaaabbbb {:?}", poll.0, poll.1);
    let uring = look(&Lio::new(8).unwrap(), &path);
    println!("io_uring: file {:?}; reads of aaaabbbb {:?}", uring.0, uring.1);
    let expected = |file: &str, reads: [&str; 3]| (file.to_string(), reads.map(str::to_string).to_vec());
    assert_eq!(poll, expected("one two ", ["aaaa", "bbbb", ""]), "the behaviour has changed");
    assert_eq!(uring, expected("two ", ["aaaa", "aaaa", "aaaa"]), "the behaviour has changed");
}
RUST
export CARGO_TARGET_DIR="$tmp/target"
nice -n 19 cargo build -q --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check" "$tmp/file"
