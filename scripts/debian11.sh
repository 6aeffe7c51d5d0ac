#!/usr/bin/env bash
# Provides Debian 11's fio, qemu and shell with its glibc, 2.31, and its static busybox. The end-to-end tests of an
# older C library use them.
#
# usage: scripts/debian11.sh fetch        puts them and their libraries into .build/debian11, unless that has happened
#        scripts/debian11.sh place DIR    copies them to DIR and makes them run there, with these libraries
#
# Nothing is installed. apt-get fetches and checks the packages, which needs no root, and they are unpacked. If they are
# unavailable, `fetch` leaves the reason in .build/debian11/unavailable. `place` then prints the reason and fails with
# status 77.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/apt.sh
. scripts/apt.sh

SUITE=bullseye
HOME_DIR=.build/debian11
LOADER=ld-linux-x86-64.so.2
PROGRAMS=(dash fio qemu-img qemu-io) # with libraries

fetch() {
  [ -x "$HOME_DIR/busybox" ] && return
  rm -rf "$HOME_DIR"
  mkdir -p "$HOME_DIR"
  work=$PWD/$HOME_DIR/work
  local reason="no apt-get or no dpkg-deb here"
  if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    if download >"$HOME_DIR/log" 2>&1 && unpack >>"$HOME_DIR/log" 2>&1; then
      rm -rf "$work"
      return
    fi
    reason=$(grep -m1 '^[EW]: ' "$HOME_DIR/log" || tail -n 1 "$HOME_DIR/log")
  fi
  rm -rf "$work" "$HOME_DIR/busybox"
  echo "fio cannot be had from Debian $SUITE: $reason" >"$HOME_DIR/unavailable"
}

download() {
  apt_prepare "$work" "deb [arch=amd64 signed-by=$DEBIAN_KEYS] $DEBIAN_MIRROR $SUITE main" &&
    apt apt-get update &&
    apt apt-get install --download-only busybox-static dash fio qemu-utils
}

# Of all files in the packages, keeps only those that the programs load.
unpack() {
  local package program root=$work/root libraries
  for package in "$work"/cache/archives/*.deb; do dpkg-deb --extract "$package" "$root" || return; done
  libraries=$root/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu/ceph
  mkdir -p "$HOME_DIR/lib"
  mv "$root/bin"/* "$root/usr/bin" || return
  for program in "${PROGRAMS[@]}"; do
    "$root/lib/x86_64-linux-gnu/$LOADER" --library-path "$libraries" --list "$root/usr/bin/$program" || return
  done >"$work/list"
  if grep 'not found' "$work/list"; then return 1; fi
  sed -n 's/.* => \([^ ]*\) .*/\1/p' "$work/list" | sort -u | xargs cp -L -t "$HOME_DIR/lib" || return
  cp -L "$root/lib/x86_64-linux-gnu/$LOADER" "$root"/lib/x86_64-linux-gnu/lib{dl,pthread}.so.[0-9] "$HOME_DIR/lib" || return
  # A library's own search path would take precedence over the program's.
  find "$HOME_DIR/lib" -type f ! -name 'ld-*' ! -name 'libc.so*' ! -name 'libpthread.so*' -exec chmod u+w {} + \
    -exec patchelf --remove-rpath {} + || return
  (cd "$root/usr/bin" && cp "${PROGRAMS[@]}" "$OLDPWD/$HOME_DIR") || return
  cp "$root/usr/bin/busybox" "$HOME_DIR"
}

place() {
  local directory=$1 program
  if [ -f "$HOME_DIR/unavailable" ]; then
    cat "$HOME_DIR/unavailable"
    exit 77
  fi
  cp -r "$HOME_DIR"/{lib,busybox} "${PROGRAMS[@]/#/$HOME_DIR/}" "$directory"
  for program in "${PROGRAMS[@]}"; do
    patchelf --set-interpreter "$directory/lib/$LOADER" --force-rpath --set-rpath "$directory/lib" "$directory/$program"
  done
}

case ${1:-} in
  fetch) fetch ;;
  place) place "${2:?place needs a directory}" ;;
  *)
    sed -n '2,5s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac
