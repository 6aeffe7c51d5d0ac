#!/usr/bin/env bash
# Tests the crate `anyring`. Its examples must be those of docs/embedding.md. Its tests run where io_uring is refused
# and where it is not. `cargo publish --dry-run` must pass.
#
# usage: scripts/embedding.sh TARGET       (TARGET/release holds what `make build` built; TARGET/embed is built in)
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath "${1:?usage: scripts/embedding.sh TARGET}")
unset LD_PRELOAD ANYRING_LIBRARY ANYRING_BACKEND ANYRING_AIO ANYRING_STATS ANYRING_LOG ANYRING_RAW
export CARGO_TARGET_DIR=$target/embed
# shellcheck source=tests/kit/cases.sh
. tests/kit/cases.sh
deny() { "$target/release/anyring" deny -- "$@"; }

# example NUMBER: runs the page's block of that number where io_uring is refused.
example() {
  local commands
  commands=$(awk -v wanted="$1" '/^```$/ { inside = 0 } inside; /^```sh$/ { inside = ++count == wanted }' docs/embedding.md)
  (cd crates/anyring && deny bash -euc "$commands") >"$target/embed/said"
  cat "$target/embed/said"
  grep -qx 'served by Anyring' "$target/embed/said" && grep -qx '64 bytes' "$target/embed/said"
}

tests_hold() { (cd crates/anyring && cargo test --quiet --locked && deny cargo test --quiet --locked); }

# switched_off: with ANYRING_BACKEND=kernel the example reports the kernel's error.
switched_off() {
  local said
  if said=$(cd crates/anyring && ANYRING_BACKEND=kernel deny "$CARGO_TARGET_DIR/debug/examples/io_uring" 2>&1); then return 1; fi
  grep -q 'Operation not permitted' <<<"$said" || { echo "$said"; return 1; }
}

# Does all that publishing does except the upload. The four crates are checked together, since none is in the registry.
# `anyring` is a workspace of its own. It gets their paths, since its dry run would otherwise look in the registry.
could_be_published() {
  local crates=(-p anyring-abi -p anyring-engine -p anyring-serve -p anyring-inject) patches=() crate
  cargo publish --dry-run --quiet --locked --allow-dirty "${crates[@]}"
  for crate in abi engine serve inject; do patches+=(--config "patch.crates-io.anyring-$crate.path='$PWD/crates/$crate'"); done
  (cd crates/anyring && cargo publish --dry-run --quiet --allow-dirty "${patches[@]}")
}

case_ "the example with io-uring" example 5
case_ "the example with tokio-uring" example 6
case_ "the tests hold with the kernel's io_uring and without" tests_hold
case_ "where it is switched off the error says so" switched_off
case_ "all five crates could be published" could_be_published
finish
