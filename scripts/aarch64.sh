#!/usr/bin/env bash
# Builds for aarch64 what supports it, and runs clippy on it. Then runs the engine's unit tests and the conformance
# cases on an emulated machine with Debian's kernel (scripts/host.sh).
#
# usage: scripts/aarch64.sh TARGET [OPTIONS...]      (TARGET: where cargo builds; OPTIONS: more for the cases, as --filter TEXT)
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR=$1
shift
triple=aarch64-unknown-linux-gnu
kernel=6.1

skip() {
  echo "skip: $1"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
}
[ -d "$(rustc --print target-libdir --target "$triple")" ] ||
  skip "the toolchain lacks the target (rustup target add $triple)"
command -v aarch64-linux-gnu-gcc >/dev/null || skip "no aarch64-linux-gnu-gcc here (Debian's gcc-aarch64-linux-gnu)"
[ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ] || skip "no C library for aarch64 here (Debian's libc6-dev-arm64-cross)"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
crates=(-p anyring-abi -p anyring-engine -p anyring-serve -p anyring-inject)
cargo clippy --locked --target "$triple" "${crates[@]}" --lib --quiet -- -D warnings
cargo build --locked --target "$triple" -p anyring-inject -p anyring-conformance
tests=$(cargo test --locked --target "$triple" -p anyring-engine --lib --no-run 2>&1 | tee /dev/stderr |
  sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
ln -f "$tests" "$CARGO_TARGET_DIR/$triple/debug/engine-tests"

# Tests of the sources themselves are left to the machine that has them.
# shellcheck disable=SC2016 # for the shell over there
over_there='status=0
engine-tests --skip every_room_has_a_mutation --skip every_call_leaves_through_one_point || status=1
# The cases ask for these libraries, and take the functions of the preloaded one.
ln -s /bin/libanyring.so /lib/liburing.so.2
ln -s /bin/libanyring.so /lib/libaio.so.1
export ANYRING_BACKEND=user ANYRING_AIO=user
LD_PRELOAD=/bin/libanyring.so anyring-conformance-plain --quiet --jobs 8 --confirm 3 --spread --oracle /lists/oracle.json \
  --expect /lists/differences.txt --expect /lists/differences-host-6.1.txt --expect /lists/differences-identity.txt "$@" || status=1
exit $status'
status=0
HOST_ARCH=aarch64 HOST_PROGRAMS=$CARGO_TARGET_DIR/$triple/debug/engine-tests HOST_TIMEOUT_S=${HOST_TIMEOUT_S:-1800} \
  scripts/host.sh "$CARGO_TARGET_DIR/$triple/debug" "$kernel" sh -c "$over_there" sh "$@" || status=$?
[ "$status" != 77 ] || skip "see above"
exit "$status"
