#!/usr/bin/env bash
# Does with a release's files what the documents tell a newcomer to do. test-packages.sh runs this script as root in a
# fresh Debian system without Rust, under a container engine's profile. The addresses of a release lead to RELEASE.
#
# usage: tests/packaging/newcomer.sh RELEASE CLIENT        (CLIENT: a program that uses io_uring, for the action's steps)
set -euo pipefail
cd "$(dirname "$0")/../.."

release=$(realpath "$1") client=$(realpath "$2") sources=$PWD
# shellcheck source=tests/kit/cases.sh
. tests/kit/cases.sh
export DEBIAN_FRONTEND=noninteractive
folder=$(mktemp -d)
cd "$folder"

# The documents assume that sudo asks root for nothing, and that apt asks a script for nothing.
sudo() { "$@"; }
apt() { apt-get -q -y --no-install-recommends "$@"; }

# block DOCUMENT NUMBER: prints the commands of that block.
block() {
  awk -v wanted="$2" '/^```$/ { inside = 0 } inside; /^```sh$/ { inside = ++count == wanted }' "$sources/docs/$1" |
    sed "s|https://github.com/anyring/anyring/releases/download/v[0-9.]*/|file://$release/|"
}

nothing_is_here() {
  local program
  for program in anyring cargo rustc cc; do
    if command -v "$program"; then return 1; fi
  done
}

works_where_it_is_unpacked() {
  eval "$(block start.md 1)"
  fio_is_served "$PWD"/anyring-*-linux/bin
}

# fio_is_served FOLDER: checks that the anyring in FOLDER serves fio.
fio_is_served() {
  local plain served
  { read -r plain && read -r served; } < <(block start.md 3)
  if $plain; then return 1; fi
  rm -f demo.*
  PATH=$1:$PATH $served >said
  grep -q 'err= 0' said && rm demo.*
}

is_installed_by_apt() {
  eval "$(block start.md 2)"
  fio_is_served /usr/bin
}

# example NUMBER: that block of docs/embedding.md.
example() {
  cp -r "$sources/docs/examples/c" "example-$1"
  cd "example-$1"
  bash -euxc "$(block embedding.md "$1")" >said 2>&1 || { cat said; return 1; }
  grep -qx 'served by anyring' said && grep -qx '64 bytes' said
}

# The line of docs/embedding.md, for a program that makes a ring by libc's syscall().
python_is_served() {
  local line
  line=$(grep -o '`anyring run -- python3 [^`]*`' "$sources/docs/embedding.md" | tr -d '`')
  echo 'import ctypes; assert ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)) >= 0' >program.py
  if ${line#*-- }; then return 1; fi
  $line
}

conformance_runs() {
  tar -xzf "$release"/anyring-conformance-*.tar.gz
  cd anyring-conformance-*
  anyring run -- ./anyring-conformance --tap --filter nop:: >said
  grep -q '^ok ' said && grep -q '^TAP version 14' said && if grep '^not ok' said; then return 1; fi
}

case_ "the system has no anyring, no Rust and no compiler" nothing_is_here
apt install ca-certificates curl fio >/dev/null 2>&1
case_ "the tarball works where it is unpacked" works_where_it_is_unpacked
case_ "apt installs the package, and fio is served" is_installed_by_apt
apt install gcc libc6-dev liburing-dev pkg-config meson cmake make g++ python3-yaml >/dev/null 2>&1
case_ "a C program is served that is linked with anyring" example 1
case_ "so with Meson" example 2
case_ "so with CMake" example 3
case_ "so with the archive" example 4
if ls "$release"/anyring-conformance-*.tar.gz >/dev/null 2>&1; then case_ "the conformance cases run as one file" conformance_runs; fi
case_ "a Python program is served" python_is_served
case_ "the steps of the action and of GitLab's template" \
  env PYTHONDONTWRITEBYTECODE=1 TMPDIR="$folder" python3 "$sources/tests/packaging/test_ci.py" /usr/bin "$release" "$client"
case_ "no step brought Rust" sh -c '! command -v cargo && ! command -v rustc'
finish
