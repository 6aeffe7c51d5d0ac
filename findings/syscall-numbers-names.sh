#!/bin/bash
# Expected: x86::sys_call_name returns the name of a system call of x86 for its number, by the documentation of the
# crate. By it, is_valid_sys_call_number is true for the numbers of system calls.
# Seen: 14 of the 440 calls that the kernel's header of x86 defines have no name, and no constant either. Among them
# are clock_gettime, getrlimit, timer_settime and mq_notify. The table of arm has a name for each of its calls. Any
# number up to the last one of a table is valid to the other function, as 400 on x86-64, which no call has.
# Versions: syscall-numbers 4.0.3 (crates.io); the header is of Linux 6.1, in Debian 12's linux-libc-dev-i386-cross
# and linux-libc-dev-armhf-cross 6.1.4-1cross1. Any kernel, any processor. Seen 2026-11-30.
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
syscall-numbers = "=4.0.3"
[workspace]
TOML
cat > "$tmp/src/main.rs" <<'RUST'
use syscall_numbers::{arm, x86, x86_64};

/// Reads lines of a processor, a call and its number, and prints those that the crate has no name for.
fn main() {
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let [processor, name, number] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let number = number.parse().unwrap();
        let known = if processor == "x86" { x86::sys_call_name(number) } else { arm::sys_call_name(number) };
        if known.is_none() {
            println!("{processor} {name}");
        }
    }
    println!("x86_64 400: name {:?}, valid {}", x86_64::sys_call_name(400), x86_64::is_valid_sys_call_number(400));
}
RUST
(cd "$tmp" && apt-get download -q=2 -o APT::Sandbox::User=root \
    linux-libc-dev-i386-cross=6.1.4-1cross1 linux-libc-dev-armhf-cross=6.1.4-1cross1 &&
    for package in ./*.deb; do dpkg-deb -x "$package" headers; done)
# Prints the calls of the kernel's header for a processor, without those private to ARM, which have no small number.
calls() {
    local include=$tmp/headers/usr/$2/include name number
    echo '#include <asm/unistd.h>' | gcc -E -dM -nostdinc "${@:3}" -isystem "$include" - |
        sed -n 's/^#define __NR_\([a-z0-9_]*\) .*/\1/p' | sort -u > "$tmp/names"
    { echo '#include <asm/unistd.h>'; sed 's/.*/call & __NR_&/' "$tmp/names"; } |
        gcc -E -P -nostdinc "${@:3}" -isystem "$include" - | sed -n 's/^call //p' | while read -r name number; do
        echo "$1 $name $((number))"
    done
}
{ calls x86 i686-linux-gnu -m32; calls arm arm-linux-gnueabihf -D__ARM_EABI__; } > "$tmp/calls"
export CARGO_TARGET_DIR="$tmp/target"
nice -n 19 cargo build -q --manifest-path "$tmp/Cargo.toml"
timeout 30 "$tmp/target/debug/check" < "$tmp/calls" > "$tmp/missing"
for processor in x86 arm; do
    echo "$processor: of $(grep -c "^$processor " "$tmp/calls") calls, without a name:" \
        "$(sed -n "s/^$processor //p" "$tmp/missing" | sort | xargs)"
done
grep '^x86_64 ' "$tmp/missing"
[ "$(grep -c '^x86 ' "$tmp/missing")" = 14 ] && ! grep -q '^arm ' "$tmp/missing"
grep -qx 'x86 clock_gettime' "$tmp/missing" && grep -qx 'x86 mq_notify' "$tmp/missing"
grep -qx 'x86_64 400: name None, valid true' "$tmp/missing"
