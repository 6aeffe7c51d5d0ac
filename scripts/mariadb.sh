#!/usr/bin/env bash
# Provides MariaDB for one end-to-end test, from the Debian release that this machine runs.
#
# usage: scripts/mariadb.sh fetch        unpacks it into .build/mariadb, unless that has happened
#
# apt-get fetches and checks the packages and the libraries that this machine lacks, which needs no root, and they are
# unpacked. Nothing is installed. If they are unavailable, or have no innodb_linux_aio, the reason is left in
# .build/mariadb/unavailable.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/apt.sh
. scripts/apt.sh

HOME_DIR=$PWD/.build/mariadb

download() {
  local work=$HOME_DIR/work package
  apt_prepare "$work" "deb [signed-by=$DEBIAN_KEYS] $DEBIAN_MIRROR $1 main" || return
  cp /var/lib/dpkg/status "$work/status"
  apt apt-get update &&
    apt apt-get install --download-only --reinstall mariadb-server-core mariadb-client-core || return
  for package in "$work"/cache/archives/*.deb; do dpkg-deb --extract "$package" "$HOME_DIR/root" || return; done
  rm -rf "$work" "$HOME_DIR"/root/usr/share/{bug,doc,lintian,man}
}

fetch() {
  [ -d "$HOME_DIR/root" ] && return
  rm -rf "$HOME_DIR"
  mkdir -p "$HOME_DIR"
  local suite reason="no apt-get or no dpkg-deb here"
  if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    # shellcheck source=/dev/null
    suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-sid}")
    if download "$suite" >"$HOME_DIR/log" 2>&1; then
      grep -q innodb_linux_aio "$HOME_DIR/root/usr/sbin/mariadbd" && return
      reason="that of Debian $suite has no innodb_linux_aio"
    else
      reason="Debian $suite: $(grep -m1 '^[EW]: ' "$HOME_DIR/log" || tail -n 1 "$HOME_DIR/log")"
    fi
  fi
  rm -rf "$HOME_DIR/root" "$HOME_DIR/work"
  echo "no MariaDB: $reason" >"$HOME_DIR/unavailable"
}

case ${1:-} in
  fetch) fetch ;;
  *)
    sed -n '2,4s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac
