#!/bin/bash
# Expected: io_submit(context, &iocbs) of the crate queues the iocbs of the slice, as io_submit(2) queues an array of
# pointers to iocbs.
# Seen: it queues the first one only. The crate passes the address of the slice reference itself, which is a pointer and
# a length. So the first entry of the kernel's array is right by luck, and the second is the length, a bad address. The
# result is Ok(1) for 2 or 3 iocbs, as for a full queue, and no error reports the others.
# Versions: nc 0.9.8 (crates.io), x86-64. Needs a kernel with Linux AIO. Seen 2026-11-29.
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
nc = "=0.9.8"
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use std::os::fd::AsRawFd;

fn main() {
    let file = std::fs::File::open(std::env::args().nth(1).unwrap()).unwrap();
    let mut results = Vec::new();
    for count in 1..=3 {
        let mut buffers = vec![[0u8; 4]; count];
        let iocbs: Vec<nc::iocb_t> = buffers
            .iter_mut()
            .enumerate()
            .map(|(index, buffer)| nc::iocb_t {
                aio_data: index as u64,
                aio_lio_opcode: nc::IOCB_CMD_PREAD,
                aio_fildes: file.as_raw_fd() as u32,
                aio_buf: buffer.as_mut_ptr() as u64,
                aio_nbytes: 4,
                aio_offset: 4 * index as i64,
                ..Default::default()
            })
            .collect();
        let mut context = nc::aio_context_t::default();
        // SAFETY: iocbs and buffers outlive the requests, which io_destroy waits for.
        let submitted = unsafe {
            nc::io_setup(8, &mut context).unwrap();
            let submitted = nc::io_submit(context, &iocbs);
            nc::io_destroy(context).unwrap();
            submitted
        };
        let filled = buffers.iter().filter(|buffer| **buffer != [0; 4]).count();
        println!("io_submit of {count} iocbs: {submitted:?}; buffers that were filled: {filled}");
        results.push((submitted, filled));
    }
    assert_eq!(results, [(Ok(1), 1); 3], "the behaviour has changed");
}
RUST
echo 0123456789ab > "$tmp/file"
export CARGO_TARGET_DIR="$tmp/target"
nice -n 19 cargo build -q --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check" "$tmp/file"
