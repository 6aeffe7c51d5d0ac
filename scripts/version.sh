#!/usr/bin/env bash
# Prints the version of this checkout. With the word `date` it prints the time of the checkout's last change, in
# seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = date ]; then
  # Unpacked sources have their files' time instead.
  git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml
else
  sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml
fi
