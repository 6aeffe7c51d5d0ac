#!/usr/bin/env bash
# Runs the steps of the GitHub action and of the GitLab template as a runner does: tests/packaging/test_ci.py.
#
# usage: tests/packaging/test-ci.sh TARGET       (TARGET/release holds what `make build` built)
set -euo pipefail
cd "$(dirname "$0")/../.."

target=$(realpath "${1:?usage: tests/packaging/test-ci.sh TARGET}")
for need in "python3 -c 'import yaml'" "curl --version"; do
  if ! sh -c "$need" >/dev/null 2>&1; then
    echo "skip: the action and the template: $need fails here (Debian: python3-yaml, curl)"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
  fi
done
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-ci-XXXXXX")
trap 'rm -rf "$folder"' EXIT
NO_SBOM=1 scripts/dist.sh "$target" "$folder" "$target/release" >/dev/null
tests/e2e/clients/build.sh "$target/e2e" nop
PYTHONDONTWRITEBYTECODE=1 python3 tests/packaging/test_ci.py "$target/release" "$folder" "$target/e2e/nop"
