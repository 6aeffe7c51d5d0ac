#!/usr/bin/env bash
# Builds everything that `make install` installs, with the release profile.
#
# usage: scripts/build.sh TARGET [PROGRAMS...]      (TARGET: where cargo builds; PROGRAMS: those that check it)
#
# The programs that check are built with the development profile, which is quicker, and TARGET/check has them and what they
# check in one folder.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$1
shift
export CARGO_TARGET_DIR=$target
cargo build --locked --release -p anyring-cli -p anyring-inject -p anyring-lab
# The drop-in liburing.so.2, the man pages and the completions, in TARGET/release/dist. What is built with the development
# profile is built as part of the whole workspace, as the unit tests are: what is built once serves all of them.
whole=(--locked --workspace --exclude anyring-e2e)
cargo build "${whole[@]}" --bin anyring-xtask "${@/#/--bin=}"
"$target/debug/anyring-xtask" dist "$target/release"
if [ $# = 0 ]; then exit; fi
mkdir -p "$target/check"
for program in release/{anyring,anyring-lab-worker,libanyring.so} debug/anyring-{conformance,conformance-plain,differential,hostile}; do
  if [ -e "$target/$program" ]; then ln -f "$target/$program" "$target/check/"; fi
done
