#!/usr/bin/env bash
# The engine's tests below AddressSanitizer and ThreadSanitizer, which take a nightly toolchain (`rustup toolchain install
# nightly`).
#
# usage: scripts/sanitizers.sh TARGET      (TARGET: where cargo builds; each has a folder of its own there)
set -euo pipefail
cd "$(dirname "$0")/.."

target=$1
triple=x86_64-unknown-linux-gnu

skip() {
  echo "skipped: $1"
  echo "0 passed, 0 failed, 1 skipped"
}

if ! rustc +nightly --version >/dev/null 2>&1; then
  skip "there is no nightly toolchain, and -Zsanitizer needs one"
  exit
fi

status=0
# The tests leave rings behind, which are never freed: tests/c/engine/{leftovers,wear,load}.c count what is left.
ASAN_OPTIONS=detect_leaks=0 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$target/address-sanitizer \
  cargo +nightly test --locked -p anyring-engine --lib --tests --target "$triple" --no-fail-fast || status=1

# Forked children do not work below it. The exit status of a report is left at 66: the tests' children have to end with 0.
RUSTFLAGS='-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer' CARGO_TARGET_DIR=$target/thread-sanitizer \
  TSAN_OPTIONS="die_after_fork=0 suppressions=$PWD/scripts/thread-sanitizer.txt" \
  cargo +nightly test --locked -p anyring-engine --lib --target "$triple" --no-fail-fast -- --skip fork || status=1
exit "$status"
