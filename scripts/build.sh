#!/usr/bin/env bash
# Builds everything that `make install` installs, with the release profile.
#
# usage: scripts/build.sh TARGET [PROGRAMS...]      (TARGET: where cargo builds; PROGRAMS: those that check it)
#
# CARGO_CONFIG is one more line of cargo's configuration for the programs that are installed (scripts/dist.sh).
# CARGO_BUILD_TARGET is cargo's variable for another processor (aarch64-unknown-linux-gnu). What is installed is then in
# TARGET/CARGO_BUILD_TARGET/release, without PROGRAMS.
#
# The programs that check are built with the development profile, which is quicker. TARGET/check holds them and what
# they check in one folder. It also holds anyring-conformance as a static program that is linked with glibc's archives,
# TARGET/check/anyring-conformance-gnu. If the toolchain has the musl target, it holds
# TARGET/check/anyring-conformance-musl, too.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$1
shift
# shellcheck source=scripts/processor.sh
. scripts/processor.sh
export CARGO_TARGET_DIR=$target
if [ -n "${CARGO_BUILD_TARGET:-}" ]; then
  [ $# = 0 ] || { echo "build: what checks is built for this machine only: unset CARGO_BUILD_TARGET" >&2 && exit 2; }
  cargo_target
  cargo ${CARGO_CONFIG:+--config "$CARGO_CONFIG"} build --locked --release -p anyring-cli -p anyring-inject -p anyring-lab
  # A program for this machine, which makes the other files.
  env -u CARGO_BUILD_TARGET cargo build --locked --release -p anyring-dist
  exec "$target/release/anyring-dist" "$target/$CARGO_BUILD_TARGET/release" "$CARGO_BUILD_TARGET"
fi
# One call, so that what several of them need is built once.
cargo ${CARGO_CONFIG:+--config "$CARGO_CONFIG"} build --locked --release -p anyring-cli -p anyring-inject -p anyring-lab -p anyring-dist
# The drop-in liburing.so.2, the man pages and the completions, in TARGET/release/dist.
"$target/release/anyring-dist" "$target/release"
if [ $# = 0 ]; then exit; fi
# Built as part of the whole workspace, as the unit tests are: what is built once serves all of them.
cargo build --locked --workspace --exclude anyring-e2e --bin anyring-xtask "${@/#/--bin=}"
mkdir -p "$target/check"
case " $* " in *" anyring-conformance "*)
  for libc in gnu musl; do
    triple=x86_64-unknown-linux-$libc
    [ -d "$(rustc --print target-libdir --target "$triple")" ] || continue
    # Given the target, cargo builds proc-macros without these flags.
    RUSTFLAGS="-C target-feature=+crt-static" \
      cargo build --locked -p anyring-conformance --bin anyring-conformance --target "$triple"
    ln -f "$target/$triple/debug/anyring-conformance" "$target/check/anyring-conformance-$libc"
  done
  ;;
esac
for program in release/{anyring,anyring-lab-worker,libanyring.so} debug/anyring-{conformance,conformance-plain,differential,files,hostile}; do
  if [ -e "$target/$program" ]; then ln -f "$target/$program" "$target/check/"; fi
done
