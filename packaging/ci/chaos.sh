#!/usr/bin/env bash
# A step of action.yml: the commands under chaos, by as many seeds as asked for. Each seed that fails becomes an annotation.
#
# environment: COMMANDS, RUNS, JUNIT, ACTION
set -euo pipefail

status=0
anyring chaos --runs "$RUNS" --junit "$JUNIT" -- bash -euo pipefail -c "$COMMANDS" || status=$?
# Where the runner has no Python, the report is all there is.
if [ -e "$JUNIT" ] && command -v python3 >/dev/null; then python3 "$ACTION/packaging/ci/annotate.py" "$JUNIT"; fi
exit "$status"
