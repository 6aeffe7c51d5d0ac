#!/usr/bin/env bash
# Installs what building, testing and the demo need on Debian 12 or newer. It leaves alone what is already installed.
#
# usage: scripts/setup.sh [demo|soak]       (demo: what `make demo` needs, and no more; soak: also what only `make soak` needs)
#
# Debian packages come through apt-get when this script runs as root. Otherwise it names the missing packages in one
# line and fails. Node 20, which no Debian release has, comes from PyPI into .build/node when the machine's own `node`
# is not version 20. PostgreSQL 18 is unpacked into .build/postgres from packages of Debian's next release. MariaDB is
# unpacked into .build/mariadb from this machine's release, and Debian 11's fio, qemu and glibc into .build/debian11.
# The own tests of liburing and libaio come from Debian's source packages. Netty, TigerBeetle's clients and the Zig
# compiler come from Maven Central, PyPI and npm's registry, where mvn, pip and npm are installed. The test of a program
# that is unavailable is skipped. The script never installs the Rust toolchain: it is yours to choose.
set -euo pipefail
cd "$(dirname "$0")/.."

TIER=${1:-}
NODE_MAJOR=20
NODE_DIR=.build/node
RUST_MINIMUM=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

say() { echo "setup: $*"; }
fail() {
  echo "setup: $*" >&2
  exit 1
}

# The Debian packages that are missing, grouped by their purpose.
missing_packages() {
  command -v cc >/dev/null || echo gcc libc6-dev
  command -v flock >/dev/null || echo util-linux
  command -v fio >/dev/null || echo fio
  { command -v qemu-img && command -v qemu-io; } >/dev/null || echo qemu-utils
  # One package has the headers, liburing.so and the archive liburing.a.
  echo '#include <liburing.h>' | cc -E - >/dev/null 2>&1 || echo liburing-dev
  if [ "$TIER" = demo ]; then return; fi
  command -v c++ >/dev/null || echo g++
  command -v make >/dev/null || echo make
  command -v readelf >/dev/null || echo binutils
  command -v musl-gcc >/dev/null || echo musl-tools
  # For the examples of docs/embedding.md.
  command -v pkg-config >/dev/null || echo pkg-config
  command -v meson >/dev/null || echo meson
  command -v cmake >/dev/null || echo cmake
  # The file systems of `make files` and of tests, which only root can mount.
  if [ "$(id -u)" = 0 ]; then
    PATH=$PATH:/usr/sbin command -v mkfs.xfs >/dev/null || echo xfsprogs
    PATH=$PATH:/usr/sbin command -v mkfs.btrfs >/dev/null || echo btrfs-progs
    PATH=$PATH:/usr/sbin command -v mkfs.ext4 >/dev/null || echo e2fsprogs
    command -v bindfs >/dev/null || echo bindfs
  fi
  if [ "$TIER" = soak ]; then
    # To unpack the suites of liburing and libaio.
    command -v dpkg-source >/dev/null || echo dpkg-dev
    # Two of the programs that docs/programs has pages of.
    command -v plocate >/dev/null || echo plocate
    PATH=$PATH:/usr/sbin command -v smbd >/dev/null || echo samba samba-vfs-modules
    command -v smbclient >/dev/null || echo smbclient
    # For `make aarch64`.
    command -v aarch64-linux-gnu-gcc >/dev/null || echo gcc-aarch64-linux-gnu
    [ -e /usr/aarch64-linux-gnu/lib/libc.a ] || echo libc6-dev-arm64-cross
    if [ "$(id -u)" = 0 ]; then
      # For `make hosts` and `make aarch64`, which are skipped without.
      command -v qemu-system-aarch64 >/dev/null || echo qemu-system-arm
      command -v cpio >/dev/null || echo cpio
      command -v qemu-system-x86_64 >/dev/null || echo qemu-system-x86
      # For `make containers` and `make engines`, which only root can do: the engines are in systems made by it.
      command -v debootstrap >/dev/null || echo debootstrap
      command -v lintian >/dev/null || echo lintian
      command -v rpmbuild >/dev/null || echo rpm
      python3 -c 'import yaml' 2>/dev/null || echo python3-yaml
      # To look at the lab's report; another Chromium does, too.
      command -v chromium >/dev/null || echo chromium
    fi
  fi
  command -v patchelf >/dev/null || echo patchelf
  # To count instructions and system calls.
  command -v valgrind >/dev/null || echo valgrind
  command -v strace >/dev/null || echo strace
  # To load the completions that are installed for them.
  command -v zsh >/dev/null || echo zsh
  command -v fish >/dev/null || echo fish
  if ! node_is_right && ! python3 -m pip --version >/dev/null 2>&1; then echo python3-pip; fi
}

install_packages() {
  local missing
  missing=$(missing_packages | tr '\n' ' ')
  [ -z "$missing" ] && return
  command -v apt-get >/dev/null || fail "missing: $missing(no apt-get here: install them by your system's own means)"
  [ "$(id -u)" = 0 ] || fail "missing: $missing- run as root, or: sudo apt-get install $missing"
  say "installing with apt-get: $missing"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >/dev/null
  # shellcheck disable=SC2086 # a list of words
  apt-get install -q -y --no-install-recommends $missing >/dev/null
  missing=$(missing_packages | tr '\n' ' ')
  [ -z "$missing" ] || fail "still missing after apt-get: $missing"
}

node_is_right() { scripts/node.sh --version 2>/dev/null | grep -q "^v$NODE_MAJOR\."; }

install_node() {
  node_is_right && return
  say "installing Node $NODE_MAJOR from PyPI into $NODE_DIR (not on this machine; Debian has other versions)"
  mkdir -p "$NODE_DIR"
  # Its own requirements file pins the version and the hash of each architecture's wheel.
  python3 -m pip install --quiet --disable-pip-version-check --no-input --no-deps --only-binary=:all: \
    --require-hashes --root-user-action=ignore --upgrade --target "$NODE_DIR" -r scripts/node-requirements.txt
  node_is_right || fail "the Node that PyPI gave does not run here: $(scripts/node.sh --version 2>&1 | head -1)"
}

# PostgreSQL for an end-to-end test, which is skipped without it.
fetch_postgres() {
  [ -d .build/postgres/root ] || say "fetching PostgreSQL 18 into .build/postgres (Debian 12 and 13 have other versions)"
  scripts/postgres.sh fetch
  if [ -f .build/postgres/unavailable ]; then say "no PostgreSQL 18: $(cat .build/postgres/unavailable)"; fi
}

# MariaDB for an end-to-end test, which is skipped without it.
fetch_mariadb() {
  [ -d .build/mariadb/root ] || say "fetching MariaDB into .build/mariadb"
  scripts/mariadb.sh fetch
  if [ -f .build/mariadb/unavailable ]; then say "$(cat .build/mariadb/unavailable)"; fi
}

# Debian 11's programs for the end-to-end tests with an older C library, which are skipped without them.
fetch_debian11() {
  [ -x .build/debian11/busybox ] || say "fetching Debian 11's fio, qemu, busybox and glibc into .build/debian11"
  scripts/debian11.sh fetch
  if [ -f .build/debian11/unavailable ]; then say "$(cat .build/debian11/unavailable)"; fi
}

# The own tests of liburing and libaio, which are skipped if they are unavailable.
fetch_suites() {
  scripts/liburing-tests.sh fetch
  scripts/libaio-tests.sh fetch
  scripts/static-fio.sh fetch
  local reason
  for reason in .build/{liburing-bookworm,liburing-sid,libaio,fio}/unavailable; do
    if [ -f "$reason" ]; then say "$(cat "$reason")"; fi
  done
}

# Libraries and compilers for tests of programs, which are skipped without them.
fetch_libraries() {
  local folder=.build/netty
  if [ ! -d $folder ] && ! mvn -q -B -f tests/e2e/clients/netty/pom.xml dependency:copy-dependencies \
    "-DoutputDirectory=$PWD/$folder" >.build/netty.log 2>&1; then
    rm -rf $folder
    say "no Netty: $(tail -n 1 .build/netty.log)"
  fi
  fetch_wheel tigerbeetle tests/e2e/clients/tigerbeetle-requirements.txt
  fetch_module tigerbeetle
  fetch_module newest
  fetch_wheel zig crates/cli/tests/zig/requirements.txt
}

# fetch_wheel NAME REQUIREMENTS: unpacks the wheels into .build/NAME.
fetch_wheel() {
  local folder=.build/$1
  [ ! -d "$folder" ] || return 0
  python3 -m pip install --quiet --disable-pip-version-check --no-input --no-deps --only-binary=:all: --require-hashes \
    --root-user-action=ignore --target "$folder" -r "$2" >".build/$1.log" 2>&1 && return
  rm -rf "$folder"
  say "no $1: $(tail -n 1 ".build/$1.log")"
}

# fetch_module NAME: installs the modules that tests/e2e/clients/NAME asks for into .build/NAME-node.
fetch_module() {
  local folder=.build/$1-node
  [ ! -d "$folder" ] || return 0
  mkdir -p "$folder"
  cp "tests/e2e/clients/$1/package.json" "tests/e2e/clients/$1/package-lock.json" "$folder"
  npm ci --silent --ignore-scripts --no-audit --no-fund --prefix "$folder" >".build/$1-node.log" 2>&1 && return
  rm -rf "$folder"
  say "no $1 for Node: $(tail -n 1 ".build/$1-node.log")"
}

check_rust() {
  local have
  local advice="Debian 13 has rustup and cargo packages new enough, Debian 12 has not: see https://rustup.rs"
  command -v cargo >/dev/null || fail "no Rust toolchain: cargo $RUST_MINIMUM or newer is needed; $advice"
  have=$(cargo --version | cut -d' ' -f2)
  [ "$(printf '%s\n' "$RUST_MINIMUM" "$have" | sort -V | head -1)" = "$RUST_MINIMUM" ] ||
    fail "cargo $have is too old: $RUST_MINIMUM or newer is needed; $advice"
  if [ "$TIER" = demo ]; then return; fi
  cargo fmt --version >/dev/null 2>&1 || fail "no rustfmt: rustup component add rustfmt, or Debian's package rustfmt"
  cargo clippy --version >/dev/null 2>&1 ||
    fail "no clippy: rustup component add clippy, or Debian's package rust-clippy"
}

[ "$(uname -s)" = Linux ] || fail "io_uring is a Linux interface; this is $(uname -s)"
install_packages
if [ "$TIER" = demo ]; then
  check_rust
  exit
fi
install_node
fetch_postgres
fetch_mariadb
fetch_debian11
if [ "$TIER" = soak ]; then
  fetch_suites
  fetch_libraries
fi
check_rust
say "all there: $(fio --version), qemu $(qemu-img --version | sed -n '1s/.*version \([^ ]*\).*/\1/p')," \
  "node $(scripts/node.sh --version), $(cc --version | sed -n 1p), $(cargo --version)"
