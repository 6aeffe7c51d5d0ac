#!/usr/bin/env bash
# Builds end-to-end clients into OUT: those named, or the dynamically linked ones of this folder.
#
# usage: tests/e2e/clients/build.sh OUT [CLIENT...]
#
# A CLIENT is one of this folder's C programs or crates (`io-uring-direct` is io-uring with another feature), as it is or, with
# one of these endings, linked in another way: `-static` (with glibc), `-static-pie`, `-musl` (static), `-musl-dynamic`. `go` and
# `zig` are the programs of crates/cli/tests, which are static.
#
# The script is quick when nothing changed. Several callers may run at once, since a lock in OUT lets one build at a
# time. If a compiler is missing, the script prints the reason, and its status is 77.
set -euo pipefail

out=${1:?usage: tests/e2e/clients/build.sh OUT [CLIENT...]}
shift
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$here" # so that messages name files as the repository does
exec 9>"$out/.lock"
flock 9

guests=../../../crates/cli/tests
zig=../../../.build/zig/ziglang/zig

# missing COMMAND PACKAGE
missing() {
  command -v "$1" >/dev/null && return 1
  echo "there is no $1 ($2)"
}

# place BUILT PROGRAM: in one step, because another test may be running it.
place() {
  cmp --silent "$1" "$out/$2" && return
  cp "$1" "$out/$2.new"
  mv "$out/$2.new" "$out/$2"
}

# compile_c PROGRAM SOURCE LIBRARY COMPILER FLAGS: rebuilds only when the source is newer.
compile_c() {
  local program=$out/$1 source=$2.c library=$3 compiler=$4
  [ "$program" -nt "$source" ] && return
  "$compiler" -O2 -g -pthread -Wall -Wextra -Werror "${@:5}" -o "$program.new" "$source" "$library"
  mv "$program.new" "$program"
}

# compile_rust PROGRAM CRATE FEATURES [TARGET]: a target directory for each program keeps the features apart.
compile_rust() {
  local program=$1 crate=$2 features=$3 target=${4:-} built=$out/build-$1
  cargo build --quiet --locked --release --manifest-path "$crate/Cargo.toml" --features "$features" \
    --target-dir "$built" ${target:+--target "$target"}
  place "$built/$target/release/client-$crate" "$program"
}

build_c() {
  local name=$1 way=$2 library=-luring
  if [ "$name" = static-liburing ] || [ -n "$way" ]; then library=/usr/lib/x86_64-linux-gnu/liburing.a; fi
  # The kernel's headers, and liburing's, are the system's.
  local musl=(musl-gcc -idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu)
  case $way in
    '') compile_c "$name" "$name" "$library" "${CC:-cc}" ;;
    -static | -static-pie) compile_c "$name$way" "$name" "$library" "${CC:-cc}" "$way" ;;
    -musl*)
      if missing musl-gcc 'Debian: musl-tools'; then exit 77; fi
      if [ "$way" = -musl ]; then musl+=(-static); fi
      compile_c "$name$way" "$name" "$library" "${musl[@]}"
      ;;
  esac
}

build_rust() {
  local name=$1 way=$2 crate=${1%-direct} features=''
  if [ "$crate" != "$name" ]; then features=direct-syscall; fi
  case $way in
    '') compile_rust "$name" "$crate" "$features" ;;
    # Given the target, cargo builds proc-macros without these flags.
    -static) RUSTFLAGS="-C target-feature=+crt-static" compile_rust "$name$way" "$crate" "$features" x86_64-unknown-linux-gnu ;;
    -musl)
      if ! [ -d "$(rustc --print target-libdir --target x86_64-unknown-linux-musl)" ]; then
        echo "there is no Rust for musl (rustup target add x86_64-unknown-linux-musl)"
        exit 77
      fi
      compile_rust "$name$way" "$crate" "$features" x86_64-unknown-linux-musl
      ;;
  esac
}

build_go() {
  if missing go 'a Go toolchain'; then exit 77; fi
  CGO_ENABLED=0 GO111MODULE=off GOFLAGS='' GOCACHE=$out/go-cache go build -o "$out/go.built" $guests/go/main.go
  place "$out/go.built" go
}

# The language is not settled: only the version that the program was written for is of use.
build_zig() {
  [ -x $zig ] || zig=zig
  case $($zig version 2>/dev/null) in
    0.13.*) ;;
    *)
      echo "there is no Zig 0.13 (\`scripts/setup.sh soak\` fetches it)"
      exit 77
      ;;
  esac
  ZIG_GLOBAL_CACHE_DIR=$out/zig-cache ZIG_LOCAL_CACHE_DIR=$out/zig-cache \
    $zig build-exe -O ReleaseSafe $guests/zig/main.zig "-femit-bin=$out/zig.built"
  place "$out/zig.built" zig
}

if [ $# = 0 ]; then set -- nop strangers static-liburing io-uring io-uring-direct tokio-uring monoio; fi
for client; do
  name=$client way=
  for ending in -musl-dynamic -musl -static-pie -static; do
    if [ "${client%"$ending"}" != "$client" ]; then
      name=${client%"$ending"} way=$ending
      break
    fi
  done
  if [ "$name" = go ] || [ "$name" = zig ]; then
    "build_$name"
  elif [ -e "$name.c" ]; then
    build_c "$name" "$way"
  else
    build_rust "$name" "$way"
  fi
done
