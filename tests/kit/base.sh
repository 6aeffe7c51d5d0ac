# For other scripts to source: systems made by debootstrap. WHAT is the test's purpose, for the line of a skip.

# shellcheck source=scripts/apt.sh
. scripts/apt.sh

skip() {
  echo "skip: $WHAT: $*"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
}

# need_libc SUITE [HINT]: ends the test as skipped unless this system is Debian's SUITE, whose libc the built programs
# need.
need_libc() {
  [ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" = "$1" ] ||
    skip "what was built here needs this system's libc, not $1's${2:-}"
}

# need_chroots SUITE: ends the test as skipped if no chroot of Debian's SUITE can be made or entered.
need_chroots() {
  [ "$(id -u)" = 0 ] || skip "a chroot needs root"
  unshare --mount --pid --fork true 2>/dev/null || skip "this machine lets root make no mount namespace"
  command -v debootstrap >/dev/null || skip "debootstrap is missing (scripts/setup.sh installs it)"
  [ -n "$DEBIAN_MIRROR" ] || skip "$NO_MIRROR"
  local release_file="import urllib.request as r; r.urlopen('$DEBIAN_MIRROR/dists/$1/InRelease', timeout=20)"
  python3 -c "$release_file" 2>/dev/null || skip "Debian's archive does not answer; DEBIAN_MIRROR names another"
}

# make_tree FOLDER SUITE PACKAGES: makes a system in FOLDER, unless there is one.
make_tree() {
  [ ! -d "$1" ] || return 0
  local new=$1.new
  rm -rf --one-file-system "$new"
  mkdir -p "$new"
  chmod 755 "$new" # it becomes a root, which other users pass through
  echo "debootstrap of $2, once; kept in $1"
  # In a mount namespace, so that its mounts end with it.
  if ! timeout 900 unshare --mount --propagation private debootstrap --variant=minbase ${3:+"--include=$3"} "$2" "$new" "$DEBIAN_MIRROR" >"$1.log" 2>&1; then
    rm -rf --one-file-system "$new"
    skip "debootstrap of $2 failed: $(tail -n 1 "$1.log")"
  fi
  mv "$new" "$1"
}

# make_base KEPT SUITE: makes a system without further packages as KEPT/SUITE.tar, unless there is one.
make_base() {
  [ ! -f "$1/$2.tar" ] || return 0
  local folder
  mkdir -p "$1"
  folder=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-debootstrap-XXXXXX")
  make_tree "$folder/root" "$2" ""
  tar -C "$folder/root" --one-file-system -cf "$1/$2.tar.new" .
  mv "$1/$2.tar.new" "$1/$2.tar"
  rm -rf --one-file-system "$folder"
}
