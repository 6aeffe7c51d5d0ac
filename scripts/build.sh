#!/usr/bin/env bash
# Builds everything that `make install` installs, with the release profile.
#
# usage: scripts/build.sh TARGET [PACKAGES...]      (TARGET: where cargo builds; PACKAGES: of the programs that check it)
#
# The programs that check are built with the development profile, which is quicker, and TARGET/check has them and what they
# check in one folder.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$1
shift
export CARGO_TARGET_DIR=$target
cargo build --locked --release -p anyring-cli -p anyring-inject -p anyring-guest -p anyring-lab
# The drop-in liburing.so.2, the man pages and the completions, in TARGET/release/dist.
cargo run --locked --quiet -p anyring-xtask -- dist "$target/release"
if [ $# = 0 ]; then exit; fi
cargo build --locked "${@/#/--package=}"
mkdir -p "$target/check"
for program in release/{anyring,anyring-guest,anyring-lab-worker,libanyring.so} debug/anyring-{conformance,conformance-plain,differential,hostile}; do
  if [ -e "$target/$program" ]; then ln -f "$target/$program" "$target/check/"; fi
done
