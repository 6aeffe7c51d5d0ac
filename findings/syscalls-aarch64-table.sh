#!/bin/bash
# Expected: the crate's table of a processor lists the calls of that processor's kernel, as its README says.
# Seen: the table of aarch64 also lists 20 calls that only 32-bit processors have, among them io_pgetevents_time64,
# ppoll_time64 and futex_time64. The kernel's header defines these numbers where __BITS_PER_LONG is 32. It names call 79
# `fstatat`, for newfstatat, so that parsing "newfstatat" fails. Its table of riscv64, made of the same generic list, is
# right in both.
# Versions: syscalls 0.8.1 (crates.io); the header is of Linux 6.1, in Debian 12's linux-libc-dev-arm64-cross
# 6.1.4-1cross1. Any kernel, any processor. Seen 2026-11-29.
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
syscalls = { version = "=0.8.1", default-features = false, features = ["std", "aarch64", "riscv64"] }
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use syscalls::{aarch64, riscv64};

/// The calls of the crate's two tables, a line each: architecture, name, number.
fn main() {
    for number in 0..1024 {
        if let Some(call) = aarch64::Sysno::new(number) {
            println!("aarch64 {} {number}", call.name());
        }
        if let Some(call) = riscv64::Sysno::new(number) {
            println!("riscv64 {} {number}", call.name());
        }
    }
    println!("aarch64 parses newfstatat: {}", "newfstatat".parse::<aarch64::Sysno>().is_ok());
    println!("riscv64 parses newfstatat: {}", "newfstatat".parse::<riscv64::Sysno>().is_ok());
}
RUST
(cd "$tmp" && apt-get download -q=2 -o APT::Sandbox::User=root linux-libc-dev-arm64-cross=6.1.4-1cross1 &&
    dpkg-deb -x ./*.deb header)
export CARGO_TARGET_DIR="$tmp/target"
nice -n 19 cargo build -q --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check" > "$tmp/tables"
grep parses "$tmp/tables"

# The names that the kernel's header gives to a program on aarch64.
include=$tmp/header/usr/aarch64-linux-gnu/include
echo '#include <asm/unistd.h>' | gcc -E -dM -nostdinc -isystem "$include" - |
    sed -n 's/^#define __NR\(3264\)\?_\([a-z0-9_]*\) .*/\2/p' | sort -u > "$tmp/kernel"
for processor in aarch64 riscv64; do
    # Of the numbers below 450, which Linux 6.1 ends with, and without the range that each architecture may define.
    awk -v p=$processor '$1 == p && NF == 3 && $3 < 450 && ($3 < 244 || $3 > 259) { print $2 }' "$tmp/tables" |
        sort > "$tmp/$processor"
    comm -23 "$tmp/$processor" "$tmp/kernel" > "$tmp/$processor.only"
    echo "$processor: listed, not in the kernel's header: $(wc -l < "$tmp/$processor.only")"
done
xargs < "$tmp/aarch64.only"
[ "$(wc -l < "$tmp/aarch64.only")" = 20 ] && [ ! -s "$tmp/riscv64.only" ]
grep -qx io_pgetevents_time64 "$tmp/aarch64.only"
grep -qx 'aarch64 parses newfstatat: false' "$tmp/tables" && grep -qx 'riscv64 parses newfstatat: true' "$tmp/tables"
