#!/usr/bin/env bash
# Runs the engine's tests below AddressSanitizer and ThreadSanitizer, which need a nightly toolchain (`rustup toolchain
# install nightly`).
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
# Rings are never freed, so leaks are not reported. tests/c/engine/{leftovers,leaks,load}.c count what tests leave.
ASAN_OPTIONS=detect_leaks=0 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$target/address-sanitizer \
  cargo +nightly test --locked -p anyring-engine --lib --tests --target "$triple" --no-fail-fast || status=1

# Tests that use the library after a fork are left out: ThreadSanitizer does not work in forked children of a process with
# threads. Children would count their parents' reports, so the log, not the exit status, shows whether there were any. The
# engine's threads may outlive a test.
mkdir -p "$target/thread-sanitizer"
log=$target/thread-sanitizer/log
RUSTFLAGS='-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer' CARGO_TARGET_DIR=$target/thread-sanitizer \
  TSAN_OPTIONS="die_after_fork=0 exitcode=0 report_thread_leaks=0 suppressions=$PWD/scripts/thread-sanitizer.txt" \
  cargo +nightly test --locked -p anyring-engine --lib --target "$triple" --no-fail-fast -- --skip fork 2>&1 | tee "$log" ||
  status=1
if grep -q '^WARNING: ThreadSanitizer' "$log"; then status=1; fi
exit "$status"
