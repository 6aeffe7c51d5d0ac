#!/usr/bin/env bash
# Runs one cargo command on the workspace and on the crates that stand outside it (the end-to-end clients).
#
# usage: scripts/each-crate.sh CARGO-COMMAND ARGS...
set -euo pipefail
cd "$(dirname "$0")/.."

subcommand=$1
shift
scope=--workspace
[ "$subcommand" = fmt ] && scope=--all
target=${CARGO_TARGET_DIR:-$PWD/target}
CARGO_TARGET_DIR=$target cargo "$subcommand" "$scope" "$@"
for manifest in tests/e2e/clients/*/Cargo.toml; do
  CARGO_TARGET_DIR=$target/e2e/lint cargo "$subcommand" --manifest-path "$manifest" "$@"
done
