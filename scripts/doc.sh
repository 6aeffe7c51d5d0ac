#!/usr/bin/env bash
# Makes the documentation pages of all crates, without warnings. The command and the preloaded library have the same
# name, and so the same folder of pages. The two are made one after the other: otherwise one would now and then remove
# the folder from under the other.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTDOCFLAGS="-D warnings"
cargo doc --locked --workspace --exclude anyring-cli --no-deps --quiet
cargo doc --locked --package anyring-cli --no-deps --quiet
