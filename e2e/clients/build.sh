#!/usr/bin/env bash
# Builds the end-to-end clients into OUT: three C programs and three Rust crates, one of them twice.
#
# usage: e2e/clients/build.sh OUT
#
# Quick when nothing changed. Several callers may run at once: a lock in OUT lets one build at a time.
set -euo pipefail

out=${1:?usage: e2e/clients/build.sh OUT}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$here" # so that messages name files as the repository does
exec 9>"$out/.lock"
flock 9

# compile_c NAME LIBRARY: rebuilds only when the source is newer, and replaces the program in one step because another
# test may be running it.
compile_c() {
  local source=$1.c program=$out/$1
  [ "$program" -nt "$source" ] && return
  "${CC:-cc}" -O2 -g -pthread -Wall -Wextra -Werror -o "$program.new" "$source" "$2"
  mv "$program.new" "$program"
}

# compile_rust PROGRAM CRATE [FEATURES]: a target directory for each program keeps the features apart.
compile_rust() {
  local program=$1 crate=$2 features=${3:-}
  cargo build --quiet --locked --release --manifest-path "$crate/Cargo.toml" --features "$features" \
    --target-dir "$out/build-$program"
  local built=$out/build-$program/release/client-$crate
  cmp --silent "$built" "$out/$program" && return
  cp "$built" "$out/$program.new"
  mv "$out/$program.new" "$out/$program"
}

compile_c nop -luring
compile_c strangers -luring
compile_c static-liburing -l:liburing.a
compile_rust io-uring io-uring
compile_rust io-uring-direct io-uring direct-syscall
compile_rust tokio-uring tokio-uring
compile_rust monoio monoio
