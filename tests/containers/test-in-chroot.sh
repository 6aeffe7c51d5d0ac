#!/usr/bin/env bash
# Runs the steps of packaging/Dockerfile, Dockerfile.example and kubernetes.yaml without a container engine. Each
# image is a chroot made by debootstrap; tests/containers/in_chroot.py lists the substitutes.
#
# usage: [FULL=1] tests/containers/test-in-chroot.sh TARGET
#
# Without FULL the image's `make` gets the existing build in TARGET, and its package list is only simulated. With FULL=1
# everything is compiled in the chroot. The tests of in_chroot.py's Dockerfile parser run first, everywhere.
# TARGET/containers keeps the base system and the fetched packages, so that only the first run takes a minute more.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=$(realpath "${1:?usage: tests/containers/test-in-chroot.sh TARGET}")
SUITE=bookworm # Debian 12, which both Dockerfiles name
WHAT="the containers' steps"
# shellcheck source=tests/kit/base.sh
. tests/kit/base.sh

PYTHONDONTWRITEBYTECODE=1 python3 tests/containers/test_in_chroot.py

[ -n "${FULL:-}" ] || need_libc "$SUITE" "; FULL=1 builds in the chroot"
need_chroots "$SUITE"
python3 -c 'import yaml' 2>/dev/null || skip "python3-yaml is missing (scripts/setup.sh installs it)"

kept=$target/containers
mkdir -p "$kept/archives"
make_base "$kept" "$SUITE"
exec unshare --mount --propagation private \
  python3 tests/containers/in_chroot.py "$target" "$kept/$SUITE.tar" "$kept/archives" ${FULL:+--full}
