#!/usr/bin/env bash
# Runs liburing's own tests, from Debian's source package, on the kernel's io_uring and on anyring's. This repository
# keeps nothing of them.
#
# usage: scripts/liburing-tests.sh fetch             unpacks them into .build/liburing-SUITE, unless that has happened
#        scripts/liburing-tests.sh build             builds them there
#        scripts/liburing-tests.sh run BIN [ARGS]    builds and runs them (BIN: the folder with anyring and libanyring.so)
#
# ARGS go to scripts/liburing_tests.py, which says how the tests are run and judged; its --help lists the options.
# LIBURING_SUITE is the Debian release whose liburing is tested. Without it, two are tested: bookworm (2.3) and sid (2.15
# or newer). trixie has 2.9. tests/conformance/liburing-tests-SUITE.txt lists a suite's exceptions. apt-get fetches and
# checks the package, which needs no root. If the package is unavailable, `fetch` leaves the reason in
# .build/liburing-SUITE/unavailable, and `run` prints it as a skip.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/apt.sh
. scripts/apt.sh

if [ -z "${LIBURING_SUITE:-}" ]; then
  status=0
  for suite in bookworm sid; do LIBURING_SUITE=$suite scripts/liburing-tests.sh "$@" || status=$?; done
  exit "$status"
fi
SUITE=$LIBURING_SUITE
HOME_DIR=$PWD/.build/liburing-$SUITE
SOURCE=$HOME_DIR/source

fetch() { fetch_source liburing "$SUITE" "$HOME_DIR" test/Makefile; }

# One folder of test programs for each way to link them. The archive and the shared library are liburing's own.
build() {
  [ -e "$HOME_DIR/built" ] && [ -d "$SOURCE/test-guest" ] && return
  cd "$SOURCE"
  ./configure --cc=cc --cxx=c++
  make -j"$(nproc)" -C src
  # Each way has a folder in which -luring is found first.
  rm -rf lib test-shared test-static test-guest
  mkdir -p lib/shared lib/static
  cp src/liburing.a lib/static/
  cp src/liburing.so.2.* lib/shared/liburing.so.2
  ln -s liburing.so.2 lib/shared/liburing.so
  # The archive comes second for the shared way, too: 2.3 forgot to export some functions (io_uring_enable_rings ...).
  build_programs static "-L$SOURCE/lib/static"
  build_programs guest "-L$SOURCE/lib/static -static"
  build_programs shared "-L$SOURCE/lib/shared -Wl,-rpath,$SOURCE/lib/shared -luring -l:liburing.a"
  touch "$HOME_DIR/built"
}

# --keep-going: the runner says which programs are missing.
build_programs() {
  local way=$1 flags=$2
  cp -r test "test-$way"
  make -j"$(nproc)" --keep-going -C "test-$way" LDFLAGS="$flags" || true
}

run() {
  local bin=$1
  shift
  fetch
  if skip_unavailable "$HOME_DIR"; then return; fi
  scripts/liburing-tests.sh build >"$HOME_DIR/build.log" 2>&1 || {
    tail -n 20 "$HOME_DIR/build.log"
    return 1
  }
  local list=tests/conformance/liburing-tests-$SUITE.txt exceptions=()
  if [ -e "$list" ]; then exceptions=(--exceptions "$list"); fi
  python3 scripts/liburing_tests.py --bin "$bin" --tests "$SOURCE" "${exceptions[@]}" "$@"
}

case ${1:-} in
  fetch) fetch ;;
  build) build ;;
  run) run "${2:?run needs the folder of programs}" "${@:3}" ;;
  *)
    sed -n '2,8s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac
