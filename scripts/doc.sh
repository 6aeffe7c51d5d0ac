#!/usr/bin/env bash
# Makes the pages of all crates, without warnings. The command and the preloaded library have one name and so one folder of
# pages: made at the same time, now and then one takes the folder from under the other.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTDOCFLAGS="-D warnings"
cargo doc --locked --workspace --exclude anyring-cli --no-deps --quiet
cargo doc --locked --package anyring-cli --no-deps --quiet
