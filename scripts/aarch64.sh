#!/usr/bin/env bash
# Builds anyring for aarch64, checks it with clippy, and runs it on emulated machines with Debian's kernels (scripts/host.sh): the
# engine's unit tests, the conformance cases, fio, guests and the commands with pages of 4 KiB, and the cases and guests with
# pages of 16 KiB.
#
# usage: scripts/aarch64.sh TARGET [OPTIONS...]      (TARGET: where cargo builds; OPTIONS: more for the cases, as --filter TEXT)
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR=$1
shift
triple=aarch64-unknown-linux-gnu

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
crates=(-p anyring-abi -p anyring-engine -p anyring-serve -p anyring-inject -p anyring-guest -p anyring-cli)
cargo clippy --locked --target "$triple" "${crates[@]}" --lib --bins --quiet -- -D warnings
cargo build --locked --target "$triple" -p anyring-inject -p anyring-cli -p anyring-conformance
tests=$(cargo test --locked --target "$triple" -p anyring-engine --lib --no-run 2>&1 | tee /dev/stderr |
  sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
bin=$CARGO_TARGET_DIR/$triple/debug
ln -f "$tests" "$bin/engine-tests"

# Static programs, which become guests. Without Go or the package of liburing, some are left out.
RUSTFLAGS='-C target-feature=+crt-static' cargo build --locked --target "$triple" --target-dir "$CARGO_TARGET_DIR/static" \
  -p anyring-conformance --bin anyring-conformance
ln -f "$CARGO_TARGET_DIR/static/$triple/debug/anyring-conformance" "$bin/anyring-conformance-gnu"
for how in '' -static; do
  aarch64-linux-gnu-gcc -O2 -pthread $how -o "$bin/jumps$how" crates/cli/tests/c/jumps-aarch64.c
done
# shellcheck source=scripts/apt.sh
. scripts/apt.sh
guests=() work=$(mktemp -d)
for_arm64() { apt "$1" -o APT::Architecture=arm64 -o APT::Architectures=arm64 "${@:2}"; }
if apt_prepare "$work/apt" "deb [arch=arm64 signed-by=$DEBIAN_KEYS] $DEBIAN_MIRROR bookworm main" &&
  for_arm64 apt-get update >"$work/log" 2>&1 && (cd "$work" && for_arm64 apt-get download liburing-dev) >>"$work/log" 2>&1; then
  dpkg-deb --extract "$work"/liburing-dev_*.deb "$work"
  cp -r "$work"/usr/include/liburing* "$work/usr/lib"
  aarch64-linux-gnu-gcc -O2 -static -pthread -I "$work/usr/lib" -o "$bin/guest-c" crates/cli/tests/c/guest.c \
    "$work/usr/lib/aarch64-linux-gnu/liburing.a"
  guests+=("$bin/guest-c")
fi
if command -v go >/dev/null; then
  GOARCH=arm64 CGO_ENABLED=0 GO111MODULE=off GOFLAGS='' GOCACHE=$work/go go build -o "$bin/guest-go" crates/cli/tests/go/main.go
  guests+=("$bin/guest-go")
fi
rm -rf "$work"
export HOST_ARCH=aarch64 HOST_TIMEOUT_S=${HOST_TIMEOUT_S:-1800}

# The cases ask for these libraries, and take the functions of the preloaded one.
# shellcheck disable=SC2016 # for the shell over there
cases='ln -s /bin/libanyring.so /lib/liburing.so.2
ln -s /bin/libanyring.so /lib/libaio.so.1
anyring deny -- anyring run --backend user --aio user -- anyring-conformance --quiet --jobs 8 --confirm 3 --spread \
  --door liburing --door libc --door raw --oracle /lists/oracle.json --oracle /lists/oracle-7.3.json \
  --expect /lists/differences.txt "$@" || status=1'
# shellcheck disable=SC2016 # as above
guests_cases='anyring deny -- anyring run --backend user --aio user --guest -- anyring-conformance-gnu --quiet --jobs 8 --confirm 3 \
  --spread --door libc --door raw --oracle /lists/oracle.json --oracle /lists/oracle-7.3.json --expect /lists/differences.txt \
  --expect /lists/differences-guest.txt "$@" || status=1'
# Tests of the sources themselves are left to the machine that has them.
tests='engine-tests --skip every_room_has_a_mutation --skip every_call_leaves_through_one_point || status=1'
programs='host-programs.sh || status=1
aarch64-commands.sh || status=1
aarch64-guests.sh || status=1'

total=0 failed=0 skipped=0 log=$(mktemp)
trap 'rm -f "$log"' EXIT

# on_host KERNEL SCRIPT ARGS...: runs the script on that kernel, and adds its counts to the totals.
on_host() {
  local status=0 passed bad missed
  echo "--- Linux $1"
  scripts/host.sh "$bin" "$1" sh -c "status=0
$2
exit \$status" sh "${@:3}" >"$log" 2>&1 || status=$?
  sed 's/^/  /' "$log"
  if [ "$status" = 77 ]; then
    skipped=$((skipped + 1))
    return
  fi
  read -r passed bad missed < <(awk '
    /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/      { p += $1; f += $3; s += $5 }
    /^test result: .* [0-9]+ passed; [0-9]+ failed/       { p += $4; f += $6 }
    /^program .*: works$/                                 { p += 1 }
    /^program .*: fails$/                                 { f += 1 }
    /^skip: /                                             { s += 1 }
    END                                                   { print p + 0, f + 0, s + 0 }' "$log")
  # A run that failed without counting a failure did not reach its end.
  if [ "$status" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
  total=$((total + passed)) failed=$((failed + bad)) skipped=$((skipped + missed))
}

export HOST_PROGRAMS="$bin/engine-tests $bin/anyring-conformance $bin/anyring-conformance-gnu scripts/host-programs.sh
  scripts/aarch64-commands.sh scripts/aarch64-guests.sh $bin/jumps $bin/jumps-static ${guests[*]}"
HOST_PACKAGES=fio on_host 6.1 "$tests
$programs
$cases
$guests_cases" --expect /lists/differences-host-6.1.txt "$@"
on_host 6.12-16k "aarch64-guests.sh || status=1
$cases" --expect /lists/differences-host-6.12.txt --expect /lists/differences-pages-16k.txt "$@"

echo "$total passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
