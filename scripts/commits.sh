#!/usr/bin/env bash
# Checks the message of each commit since this check was introduced, as the hook does (scripts/hooks/commit-msg).
#
# usage: scripts/commits.sh
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
  echo "skip: the messages of commits: $1"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
}

# The commit that added the hook. Later messages are checked.
if ! git rev-parse --verify --quiet HEAD >/dev/null 2>&1; then skip "these sources are in no git repository"; fi
if [ "$(git rev-parse --is-shallow-repository)" = true ]; then skip "a shallow clone does not have them"; fi
first=$(git log --diff-filter=A --format=%H -- scripts/hooks/commit-msg | tail -n 1)
if [ -z "$first" ]; then skip "the hook is not committed"; fi

message=$(mktemp)
trap 'rm -f "$message"' EXIT
passed=0 failed=0
for commit in $(git rev-list --no-merges "$first^..HEAD"); do
  git log -1 --format=%B "$commit" >"$message"
  if scripts/hooks/commit-msg "$message"; then
    passed=$((passed + 1))
  else
    echo "FAIL ${commit:0:12}"
    failed=$((failed + 1))
  fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
