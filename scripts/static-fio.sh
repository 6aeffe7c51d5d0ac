#!/usr/bin/env bash
# Builds fio, linked statically with glibc, from Debian's source package, for the end-to-end tests. This repository
# keeps nothing of it.
#
# usage: scripts/static-fio.sh fetch      unpacks it into .build/fio, unless that has happened
#        scripts/static-fio.sh build      builds .build/fio/source/fio; a minute
#
# If the package is unavailable, `fetch` leaves the reason in .build/fio/unavailable. `build` then prints it and fails
# with status 77.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/apt.sh
. scripts/apt.sh

HOME_DIR=$PWD/.build/fio

build() {
  exec 9>"$PWD/.build/fio.lock"
  flock 9
  fetch_source fio bookworm "$HOME_DIR" configure
  if [ -e "$HOME_DIR/unavailable" ]; then
    cat "$HOME_DIR/unavailable"
    exit 77
  fi
  [ -x "$HOME_DIR/source/fio" ] && return
  cd "$HOME_DIR/source"
  if ! { ./configure --build-static --disable-native && make -j"$(nproc)" fio; } >"$HOME_DIR/build.log" 2>&1; then
    tail -n 20 "$HOME_DIR/build.log"
    return 1
  fi
}

case ${1:-} in
  fetch) fetch_source fio bookworm "$HOME_DIR" configure ;;
  build) build ;;
  *)
    sed -n '2,8s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac
