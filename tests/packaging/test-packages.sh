#!/usr/bin/env bash
# Checks the packages. Debian's: lintian passes; fresh systems install it, are served by it, and are as before once it
# is purged. The RPM is installed into a root of its own, and removed. The recipes for Alpine, Nix and Homebrew are
# checked as far as a shell can.
#
# usage: tests/packaging/test-packages.sh TARGET [SUITE...]      (TARGET/release holds what `make build` built; Debian 11, 12 and 13)
#
# TARGET/containers keeps the base systems. fio comes from Debian's archive, as the machine reaches it.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=$(realpath "${1:?usage: tests/packaging/test-packages.sh TARGET [SUITE...]}")
shift
suites=("$@")
[ $# != 0 ] || suites=(bullseye bookworm trixie)
# shellcheck disable=SC2034 # for tests/kit/base.sh
WHAT="the packages"
# shellcheck source=tests/kit/base.sh
. tests/kit/base.sh
# shellcheck source=tests/kit/cases.sh
. tests/kit/cases.sh
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-packages-XXXXXX")
trap 'rm -rf --one-file-system "$folder"' EXIT
command -v dpkg-deb >/dev/null || skip "there is no dpkg-deb here"
scripts/deb.sh "$target/release" "$folder" >/dev/null
package=$(echo "$folder"/anyring_*_amd64.deb)

same_bytes_again() {
  scripts/deb.sh "$target/release" "$folder/again" >/dev/null
  cmp "$package" "$folder/again/${package##*/}"
}

lintian_is_content() { lintian --fail-on error,warning "$package" --allow-root; }

rpm_comes_and_goes() {
  local root=$folder/rpm-root first
  first=$(scripts/rpm.sh "$target/release" "$folder" | tail -n 1)
  scripts/rpm.sh "$target/release" "$folder/again" >/dev/null
  cmp "$first" "$folder/again/${first##*/}"
  # The root has no glibc, so rpm installs with --nodeps. The dependency is checked here.
  rpm -qp --requires "$first" | grep -qx 'glibc >= 2.17'
  mkdir "$root"
  rpm --root "$root" --nodeps --install "$first"
  "$root/usr/bin/anyring" deny -- "$root/usr/bin/anyring" doctor | grep -Eq '^ +preload +yes'
  rpm --root "$root" --nodeps --erase anyring
  [ -z "$(find "$root/usr" -name '*anyring*' -not -path '*/lib/sysimage/*')" ]
}

# The two steps of abuild that the recipe defines.
apkbuild_packages() {
  mkdir "$folder/apk" "$folder/apk/src"
  tar -C "$folder/apk/src" -xf "$folder"/release/anyring-*-linux.tar.gz
  srcdir=$folder/apk/src pkgdir=$folder/apk/pkg sh -euc '. "$1"; package
    [ "$license" = "MIT OR Apache-2.0" ] && cd "$2" && echo "$sha512sums" | sed "/^$/d" | sha512sum --check --quiet' \
    sh "$folder/release/recipes/APKBUILD" "$folder/release"
  "$folder/apk/pkg/usr/bin/anyring" --version && [ -f "$folder/apk/pkg/usr/share/man/man1/anyring.1" ]
}

# The files that the formula and the flake install are in the tarball, and their checksum is the tarball's.
recipes_name_what_there_is() {
  local sum path
  sum=$(sha256sum <"$folder"/release/anyring-*-linux.tar.gz)
  grep -q "${sum%% *}" "$folder/release/recipes/flake.nix" && grep -q "${sum%% *}" "$folder/release/recipes/anyring.rb"
  if grep -r '@[A-Z0-9]*@' "$folder/release/recipes"; then return 1; fi
  for path in $(grep -oE '"(bin|lib|share)/[^"]*"' "$folder/release/recipes/anyring.rb" | tr -d '"'); do
    # shellcheck disable=SC2086 # a pattern
    (cd "$folder"/apk/src/anyring-* && ls -d $path >/dev/null)
  done
}

# The steps in a fresh system. FIO says whether it has fio. The first mark records the state before.
# shellcheck disable=SC2016 # for the shell over there
over_there='set -eu
export DEBIAN_FRONTEND=noninteractive
files() { find / -xdev \( -path /proc -o -path /tmp -o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /var/lib/dpkg \) -prune -o -print | sort; }
apt-get update -q >/dev/null
apt-get install -q -y --no-install-recommends fio >/dev/null
files >/tmp/before
apt-get install -q -y --no-install-recommends /tmp/anyring.deb
cd /tmp
job="fio --name=job --ioengine=io_uring --rw=randrw --size=1m --verify=crc32c --iodepth=8"
if anyring deny -- $job >/tmp/denied 2>&1; then echo "fio is served without anyring"; exit 1; fi
anyring deny -- anyring run --stats /tmp/counters -- $job >/tmp/served 2>&1 || { cat /tmp/served; exit 1; }
anyring stats /tmp/counters | grep "^WRITE"
anyring deny -- anyring doctor >/tmp/doctor
for way in preload liburing syscall raw; do grep -Eq "^ +$way +yes" /tmp/doctor || { cat /tmp/doctor; exit 1; }; done
apt-get purge -q -y anyring >/dev/null
files >/tmp/after
diff /tmp/before /tmp/after'

# fresh SUITE: copies that base system to $root.
fresh() {
  root=$folder/$1
  mkdir "$root"
  tar -C "$root" -xf "$target/containers/$1.tar"
  cp --remove-destination /etc/resolv.conf "$root/etc/resolv.conf"
}

# in_namespaces ROOT SCRIPT BEFORE...: runs SCRIPT in that system, by the command BEFORE. All mounts and processes end
# with the namespaces.
in_namespaces() {
  # shellcheck disable=SC2016 # for the shell in the namespaces
  timeout 900 unshare --mount --pid --fork --kill-child --propagation private sh -c '
    root=$1 script=$2 && shift 2 && mount -t proc proc "$root/proc" && mount --bind /dev "$root/dev" &&
      exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root http_proxy="${http_proxy:-}" "$@" chroot "$root" sh -c "$script"' \
    sh "$@" </dev/null
  rm -rf --one-file-system "$1"
}

in_fresh() {
  local root
  fresh "$1"
  cp "$package" "$root/tmp/anyring.deb"
  in_namespaces "$root" "$over_there"
}

# The sources are only read there: documents and tests.
newcomer_walks() {
  local root
  fresh bookworm
  mkdir "$root/sources"
  git ls-files -z | tar --null -T - -c | tar -C "$root/sources" -x
  cp -r "$folder/release" "$root/release"
  cp "$target/e2e/nop" "$root/release/nop"
  in_namespaces "$root" "/sources/tests/packaging/newcomer.sh /release /release/nop" "$target/release/anyring" deny --profile docker --
}

case_ "the package is the same bytes twice" same_bytes_again
if command -v lintian >/dev/null; then
  case_ "lintian has no error and no warning" lintian_is_content
else
  skip_ "lintian" "it is not installed (Debian: lintian)"
fi
if command -v rpmbuild >/dev/null; then
  case_ "the RPM is the same bytes twice, installs, works and goes" rpm_comes_and_goes
else
  skip_ "the RPM" "there is no rpmbuild here (Debian: rpm)"
fi
NO_SBOM=1 scripts/dist.sh "$target" "$folder/release" "$target/release" >/dev/null
scripts/recipes.sh "$folder/release" >/dev/null
case_ "Alpine's recipe packages the release" apkbuild_packages
case_ "the recipes of Nix and Homebrew name what there is" recipes_name_what_there_is
command -v nix >/dev/null || skip_ "the flake" "there is no nix here"
command -v brew >/dev/null || skip_ "the formula" "there is no brew here"
for suite in "${suites[@]}"; do
  # In a subshell, because a missing requirement exits the shell.
  if (need_chroots "$suite" && make_base "$target/containers" "$suite") >"$folder/reason" 2>&1 && [ -f "$target/containers/$suite.tar" ]; then
    case_ "$suite installs it, serves fio with it, and is as before once it is purged" in_fresh "$suite"
  else
    skip_ "$suite" "$(grep -m1 '^skip' "$folder/reason" || tail -n 1 "$folder/reason")"
  fi
done
if [ -f "$target/containers/bookworm.tar" ]; then
  tests/e2e/clients/build.sh "$target/e2e" nop
  case_ "a newcomer's steps, as the documents say, where io_uring is refused" newcomer_walks
else
  skip_ "a newcomer's steps" "there is no base system of Debian 12"
fi
finish
