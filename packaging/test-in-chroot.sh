#!/usr/bin/env bash
# Runs the steps of packaging/Dockerfile, Dockerfile.example and kubernetes.yaml where no container engine is: each
# image is a chroot, made by debootstrap; see packaging/in_chroot.py for what stands in for what.
#
# usage: [FULL=1] packaging/test-in-chroot.sh TARGET
#
# Without FULL the image's `make` is fed with what is built in TARGET already and its package list is only simulated;
# with FULL=1 everything is compiled in the chroot. What in_chroot.py knows of Dockerfiles is tested first, everywhere.
# TARGET/containers keeps the base system and the packages fetched,
# so that only the first run takes a minute more.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath "${1:?usage: packaging/test-in-chroot.sh TARGET}")
SUITE=bookworm # Debian 12, which both Dockerfiles name
MIRROR=http://deb.debian.org/debian

skip() {
  echo "skip: the containers' steps: $*"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
}

PYTHONDONTWRITEBYTECODE=1 python3 packaging/test_in_chroot.py

[ "$(id -u)" = 0 ] || skip "a chroot needs root"
unshare --mount --pid --fork true 2>/dev/null || skip "this machine lets root make no mount namespace"
if [ -z "${FULL:-}" ] && [ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" != "$SUITE" ]; then
  skip "what was built here needs this system's libc, not $SUITE's; FULL=1 builds in the chroot"
fi
command -v debootstrap >/dev/null || skip "debootstrap is missing (scripts/setup.sh installs it)"
python3 -c 'import yaml' 2>/dev/null || skip "python3-yaml is missing (scripts/setup.sh installs it)"
release_file="import urllib.request as r; r.urlopen('$MIRROR/dists/$SUITE/InRelease', timeout=20)"
python3 -c "$release_file" 2>/dev/null || skip "$MIRROR does not answer"

kept=$target/containers
base=$kept/$SUITE.tar
mkdir -p "$kept/archives"
if [ ! -f "$base" ]; then
  folder=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-debootstrap-XXXXXX")
  chmod 755 "$folder" # it becomes the image's root, which other users pass through
  echo "debootstrap of $SUITE, once; kept in $base"
  if ! timeout 300 debootstrap --variant=minbase "$SUITE" "$folder" "$MIRROR" >"$kept/debootstrap.log" 2>&1; then
    rm -rf --one-file-system "$folder"
    skip "debootstrap failed: $(tail -n 1 "$kept/debootstrap.log")"
  fi
  tar -C "$folder" --one-file-system -cf "$base.new" .
  rm -rf --one-file-system "$folder"
  mv "$base.new" "$base"
fi
exec unshare --mount --propagation private \
  python3 packaging/in_chroot.py "$target" "$base" "$kept/archives" ${FULL:+--full}
