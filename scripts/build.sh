#!/usr/bin/env bash
# Builds everything that `make install` installs, and the programs that the tests start, with the release profile.
#
# usage: scripts/build.sh TARGET [PACKAGES...]      (TARGET: where cargo builds; PACKAGES: more to build)
set -euo pipefail
cd "$(dirname "$0")/.."

target=$1
shift
packages=(-p anyring-cli -p anyring-inject -p anyring-lab)
for package in "$@"; do packages+=(-p "$package"); done
export CARGO_TARGET_DIR=$target
cargo build --locked --release "${packages[@]}"
# The drop-in liburing.so.2, the man pages and the completions, in TARGET/release/dist.
cargo run --locked --quiet -p anyring-xtask -- dist "$target/release"
