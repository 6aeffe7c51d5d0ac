#!/usr/bin/env bash
# Builds for aarch64 what there is for it, lets clippy look at it, and runs the engine's unit tests in qemu's user emulation.
#
# usage: scripts/aarch64.sh TARGET      (TARGET: where cargo builds)
#
# What that emulation has not is listed in scripts/aarch64-skipped.txt, one line with the test and the reason; a listed test
# that passes fails the run.
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR=$1
triple=aarch64-unknown-linux-gnu
root=/usr/aarch64-linux-gnu
list=scripts/aarch64-skipped.txt
limit_s=60

skip() {
  echo "skipped: $1"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
}
[ -d "$(rustc --print target-libdir --target "$triple")" ] ||
  skip "the toolchain lacks the target (rustup target add $triple)"
command -v aarch64-linux-gnu-gcc >/dev/null || skip "no aarch64-linux-gnu-gcc here (Debian's gcc-aarch64-linux-gnu)"
[ -e "$root/lib/libc.so.6" ] || skip "no C library for aarch64 here (Debian's libc6-dev-arm64-cross)"
emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64) ||
  skip "no qemu-aarch64 here (Debian's qemu-user-static)"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
crates=(-p anyring-abi -p anyring-engine -p anyring-serve -p anyring-inject)
cargo clippy --locked --target "$triple" "${crates[@]}" --lib --quiet -- -D warnings
cargo build --locked --target "$triple" -p anyring-inject
program=$(cargo test --locked --target "$triple" -p anyring-engine --lib --no-run 2>&1 | tee /dev/stderr |
  sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
program=$(realpath "$program")

run() { (cd crates/engine && QEMU_LD_PREFIX=$root timeout --kill-after=5 "$1" "$emulator" "$program" "${@:2}"); }
status=0
skips=()
while IFS=: read -r -u 3 test reason; do
  case $test in '' | '#'*) continue ;; esac
  skips+=(--skip "$test")
  echo "skipped: $test:$reason"
  if run "$limit_s" --exact "$test" --quiet >"$CARGO_TARGET_DIR/aarch64-test.log" 2>&1; then
    echo "FAILED: $test passes, or is not there; take it off $list"
    status=1
  fi
done 3<"$list"
run 900 "${skips[@]}" || status=1
exit "$status"
