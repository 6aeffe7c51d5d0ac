#!/usr/bin/env bash
# Runs a command beside processes that only spin, as on a machine that is busy with other work.
#
# usage: scripts/beside.sh COUNT COMMAND ARGS...
set -uo pipefail

if [ $# -lt 2 ]; then
  sed -n 's/^# usage: /usage: /p' "$0" >&2
  exit 2
fi
count=$1
shift
spinning=()
trap 'kill "${spinning[@]}" 2>/dev/null' EXIT
for ((i = 0; i < count; i++)); do
  # It ends by itself if this script is killed.
  (while kill -0 "$$" 2>/dev/null; do for ((n = 0; n < 1000000; n++)); do :; done; done) &
  spinning+=($!)
done
"$@"
