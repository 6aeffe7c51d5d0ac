#!/usr/bin/env bash
# Runs libaio's own harness, from Debian's source package, on the kernel's AIO and on anyring's. This repository keeps
# nothing of it.
#
# usage: scripts/libaio-tests.sh fetch              unpacks it into .build/libaio, unless that has happened
#        scripts/libaio-tests.sh build              builds it there
#        scripts/libaio-tests.sh run BIN [CASE...]  builds and runs it, or these cases, also those that are long
#                                                   (BIN: the folder with anyring and libanyring.so)
#
# Each case is a program. Cases that pass on the kernel must pass under `anyring deny --aio -- anyring run`. A case that
# fails once and then passes three times is flaky, and skipped. apt-get fetches and checks the package, which needs no
# root. If the package is unavailable, `run` prints the reason as a skip.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/apt.sh
. scripts/apt.sh

HOME_DIR=$PWD/.build/libaio
HARNESS=$HOME_DIR/source/harness

fetch() { fetch_source libaio bookworm "$HOME_DIR" harness/main.c; }

# A folder for each way to link the programs: with the archive the calls are instructions of their own. Each has the
# folders that the cases expect.
build() {
  [ -e "$HOME_DIR/built" ] && return
  make -C "$HOME_DIR/source/src"
  local way case
  for way in shared static; do
    rm -rf "${HOME_DIR:?}/$way"
    mkdir -p "$HOME_DIR/$way/testdir" "$HOME_DIR/$way/testdir.ext2"
  done
  cp "$HOME_DIR"/source/src/libaio.so.1.* "$HOME_DIR/shared/libaio.so.1"
  cd "$HARNESS"
  for case in cases/*.t; do
    build_case static "$case" ../src/libaio.a
    build_case shared "$case" "$HOME_DIR/shared/libaio.so.1" -Wl,-rpath,"$HOME_DIR/shared"
  done
  touch "$HOME_DIR/built"
}

build_case() {
  local way=$1 case=$2
  shift 2
  cc -I../src -O2 -w -DTEST_NAME="\"$case\"" -o "$HOME_DIR/$way/$(basename "$case" .t)" main.c "$@" -lpthread
}

# pass WAY COMMAND...: whether a case passes; 3 is its own skip. Run where its folders are.
pass() {
  local way=$1
  shift
  cd "$HOME_DIR/$way"
  printf 'test\n' | tee testdir/rofile testdir/wofile >testdir/rwfile
  timeout 300 "$@" >case.log 2>&1
}

# Fills `good` with the cases that pass on the kernel's AIO. They run one after the other, since its limit applies to the
# whole machine.
pass_natively() {
  local case
  for case in "$@"; do
    if (pass shared "./$case"); then
      good+=("$case")
    else
      echo "skip: $case does not pass on the kernel's AIO here" >>"$HOME_DIR/results"
    fi
  done
}

# run_way BIN WAY CASE...: runs the cases, linked in this way, on anyring, and prints a line for each.
run_way() {
  local bin=$1 way=$2 case status
  shift 2
  on_ours() { pass "$way" "$bin/anyring" deny --aio --errno ENOSYS -- "$bin/anyring" run --backend user --aio user -- "./$1"; }
  for case in "$@"; do
    status=0
    (on_ours "$case") || status=$?
    if [ "$status" = 0 ]; then
      echo "pass: $way/$case"
    elif (on_ours "$case") && (on_ours "$case") && (on_ours "$case"); then
      echo "skip: FLAKY $way/$case: status $status once, then it passed three times"
    else
      echo "FAIL  $way/$case: status $status"
      tail -n 5 "$HOME_DIR/$way/case.log"
    fi
  done
}

run() {
  local bin
  bin=$(realpath "$1")
  shift
  fetch
  if skip_unavailable "$HOME_DIR"; then return; fi
  scripts/libaio-tests.sh build >"$HOME_DIR/build.log" 2>&1 || {
    tail -n 20 "$HOME_DIR/build.log"
    return 1
  }
  local cases=("$@") good=() way
  : >"$HOME_DIR/results"
  if [ $# = 0 ]; then choose; fi
  pass_natively "${cases[@]}"
  for way in shared static; do run_way "$bin" "$way" "${good[@]}" >"$HOME_DIR/$way.results" & done
  wait
  cat "$HOME_DIR/shared.results" "$HOME_DIR/static.results" >>"$HOME_DIR/results"
  grep -v '^pass' "$HOME_DIR/results" || true
  count() { grep -c "^$1" "$HOME_DIR/results" || true; }
  echo "$(count pass) passed, $(count FAIL) failed, $(count skip) skipped"
  [ "$(count FAIL)" = 0 ]
}

# Fills `cases` with those that take no minutes and need nothing special.
choose() {
  local case
  for case in "$HARNESS"/cases/*.t; do
    case=$(basename "$case" .t)
    case $case in
      10) echo "skip: $case needs a small file system mounted for it" >>"$HOME_DIR/results" ;;
      14) echo "skip: $case takes minutes on the kernel's AIO" >>"$HOME_DIR/results" ;;
      *) cases+=("$case") ;;
    esac
  done
}

case ${1:-} in
  fetch) fetch ;;
  build) build ;;
  run) run "${2:?run needs the folder of programs}" "${@:3}" ;;
  *)
    sed -n '2,9s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac
