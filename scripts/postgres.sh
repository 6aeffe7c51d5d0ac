#!/usr/bin/env bash
# Provides PostgreSQL 18 for one end-to-end test. It comes from Debian's next release, since Debian 12 and 13 do not
# have it.
#
# usage: scripts/postgres.sh fetch        unpacks it into .build/postgres, unless that has happened
#        scripts/postgres.sh place DIR    copies it to DIR and makes its programs run there
#
# POSTGRES_MAJOR=19 takes PostgreSQL 19 of Debian's experimental release instead, into .build/postgres-19.
#
# apt-get fetches and checks the packages and their libraries, libc included, which needs no root, and they are
# unpacked. Nothing is installed: the programs of the copy have the paths of their libraries in them. If the packages are
# unavailable, `fetch` leaves the reason in .build/postgres/unavailable. `place` then prints the reason and fails with
# status 77.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/apt.sh
. scripts/apt.sh

MAJOR=${POSTGRES_MAJOR:-18}
case $MAJOR in
  18) SUITES="forky sid" HOME_DIR=.build/postgres ;;
  *) SUITES="experimental" HOME_DIR=.build/postgres-$MAJOR ;;
esac
PROGRAMS="initdb pg_amcheck pg_checksums pgbench postgres psql"

# download SUITE: all .deb files into $work/cache/archives.
download() {
  local suite
  apt_prepare "$work" "" || return
  # Packages of the experimental release need others of sid.
  for suite in $([ "$1" = experimental ] && echo sid) "$1"; do
    echo "deb [arch=$(dpkg --print-architecture) signed-by=$DEBIAN_KEYS] $DEBIAN_MIRROR $suite main"
  done >"$work/sources"
  # Packages that only installation scripts need count as installed.
  for package in debconf locales postgresql-client-common postgresql-common ssl-cert; do
    printf 'Package: %s\nStatus: install ok installed\nArchitecture: all\nVersion: 9999\n' "$package"
    printf 'Maintainer: nobody\nDescription: not needed\n\n'
  done >"$work/status"
  apt apt-get update || return
  apt apt-get install --download-only --target-release "$1" "postgresql-$MAJOR"
}

fetch() {
  [ -x "$HOME_DIR/root/usr/lib/postgresql/$MAJOR/bin/postgres" ] && return
  rm -rf "$HOME_DIR"
  mkdir -p "$HOME_DIR"
  work=$PWD/$HOME_DIR/work
  local suite reason="no apt-get or no dpkg-deb here"
  if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    for suite in $SUITES; do
      if download "$suite" >"$HOME_DIR/log" 2>&1 && unpack >>"$HOME_DIR/log" 2>&1; then
        rm -rf "$work"
        return
      fi
      reason=$(grep -m1 '^[EW]: ' "$HOME_DIR/log" || tail -n 1 "$HOME_DIR/log")
      reason="postgresql-$MAJOR cannot be had from Debian $suite: $reason"
    done
  fi
  rm -rf "$work" "$HOME_DIR/root"
  echo "$reason" >"$HOME_DIR/unavailable"
}

unpack() {
  local package
  for package in "$work"/cache/archives/*.deb; do dpkg-deb --extract "$package" "$work/root" || return; done
  rm -rf "$work"/root/usr/share/{bug,doc,lintian,locale,man} "$work/root/usr/lib/postgresql/$MAJOR/lib/bitcode"
  mv "$work/root" "$HOME_DIR/root"
}

# The programs find their libraries by a path in them, their data by where they are.
place() {
  local directory=$1 libraries program
  if [ -f "$HOME_DIR/unavailable" ]; then
    cat "$HOME_DIR/unavailable"
    exit 77
  fi
  cp -r "$HOME_DIR/root/." "$directory"
  libraries=$(dirname "$(find "$directory/usr/lib" -name 'libc.so.6')")
  for program in $PROGRAMS; do
    patchelf --set-interpreter "$(echo "$libraries"/ld-linux*.so.*)" --force-rpath --set-rpath "$libraries" \
      "$directory/usr/lib/postgresql/$MAJOR/bin/$program"
  done
  echo "$directory/usr/lib/postgresql/$MAJOR/bin"
}

case ${1:-} in
  fetch) fetch ;;
  place) place "${2:?place needs a directory}" ;;
  *)
    sed -n '5,8s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac
