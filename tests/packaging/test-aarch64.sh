#!/usr/bin/env bash
# Checks the files of a release for aarch64, made on another machine: they are complete, all for that processor, the same
# bytes twice, and signed. On an emulated machine dpkg installs the package, the command and the drop-ins serve programs,
# and dpkg purges the package.
#
# usage: [FULL=1] tests/packaging/test-aarch64.sh TARGET       (TARGET/release holds what `make build` built, to compare)
#
# The script builds what is installed in TARGET. With FULL=1 it also makes the SBOMs.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=$(realpath "${1:?usage: [FULL=1] tests/packaging/test-aarch64.sh TARGET}")
export CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu
unset LD_PRELOAD ANYRING_LIBRARY ANYRING_BACKEND ANYRING_AIO ANYRING_STATS ANYRING_LOG ANYRING_RAW ANYRING_SIGNING_KEY
# shellcheck source=scripts/processor.sh
. scripts/processor.sh
# shellcheck source=tests/kit/cases.sh
. tests/kit/cases.sh

skip() {
  skip_ "the files for aarch64" "$1"
  finish
  exit
}
[ -d "$(rustc --print target-libdir --target "$CARGO_BUILD_TARGET")" ] ||
  skip "the toolchain lacks the target (rustup target add $CARGO_BUILD_TARGET)"
cargo_target 2>/dev/null || skip "no aarch64-linux-gnu-gcc here (Debian's gcc-aarch64-linux-gnu)"
command -v ssh-keygen >/dev/null || skip "no ssh-keygen here (Debian's openssh-client)"
[ -e /usr/aarch64-linux-gnu/lib/libc.a ] || skip "no C library for aarch64 here (Debian's libc6-dev-arm64-cross)"

folder=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-aarch64-XXXXXX")
trap 'rm -rf "$folder"' EXIT
release=$target/$CARGO_BUILD_TARGET/release
scripts/build.sh "$target"

dist() { scripts/dist.sh "$target" "$@" "$release"; }

# The second build has another time zone and folder, a key, and files for another processor in its folder.
same_twice() {
  local key
  (umask 077 && TZ=Asia/Tokyo NO_SBOM=1 dist "$folder/first")
  for file in "$folder"/first/anyring{-*-aarch64-linux.tar.gz,-*-aarch64-linux,_*_arm64.deb,-*-src.tar.gz}; do [ -s "$file" ]; done
  (cd "$folder/first" && sha256sum --check --strict --quiet SHA256SUMS)
  ssh-keygen -q -t ed25519 -N '' -C release -f "$folder/key"
  key=$(cat "$folder/key")
  mkdir "$folder/both"
  echo x >"$folder/both/anyring-0-x86_64-linux"
  (umask 002 && LC_ALL=C.UTF-8 NO_SBOM=1 KEEP=1 ANYRING_SIGNING_KEY=$key dist "$folder/both")
  diff -r -x 'anyring-0-*' -x 'SHA256SUMS*' "$folder/first" "$folder/both"
  (cd "$folder/both" && sha256sum --check --strict --quiet SHA256SUMS && grep -q ' anyring-0-x86_64-linux$' SHA256SUMS)
  echo "release $(cat "$folder/key.pub")" >"$folder/signers"
  ssh-keygen -Y verify -q -f "$folder/signers" -I release -n anyring-release -s "$folder/both/SHA256SUMS.sig" <"$folder/both/SHA256SUMS"
}

# Every program and library, in the tarball, in the package and as a single file.
all_for_this_processor() {
  local file count=0
  tar -C "$folder" -xf "$folder"/first/anyring-*-aarch64-linux.tar.gz
  dpkg-deb --extract "$folder"/first/anyring_*_arm64.deb "$folder/unpacked"
  while read -r file; do
    processor_of "$file" && [ "$processor" = aarch64 ] || { echo "$file is for $processor"; return 1; }
    count=$((count + 1))
  done < <(find "$folder"/anyring-*-aarch64-linux/{bin,lib} "$folder"/unpacked/usr/{bin,lib} "$folder"/first/anyring-*-linux -type f \
    \( -name anyring -o -name anyring-lab-worker -o -name '*.so*' -o -name 'anyring-*-linux' \))
  [ "$count" = 13 ] || { echo "$count programs and libraries"; return 1; }
  readelf -h "$folder"/unpacked/usr/lib/anyring/libanyring.a | awk '/Machine:/ && !/AArch64/ { print; exit 1 }'
  [ "$(dpkg-deb --field "$folder"/first/anyring_*_arm64.deb Architecture)" = arm64 ]
}

# No symbol of glibc's that its first version for aarch64 lacks.
need_no_newer_glibc() {
  local library versions
  for library in "$folder"/unpacked/usr/lib/anyring/{libanyring.so,dropin/*}; do
    versions=$(readelf -W --version-info "$library" | grep -oE 'GLIBC_[0-9.]+' | sort -u)
    [ "$versions" = GLIBC_2.17 ] || { echo "$library needs $versions"; return 1; }
  done
}

# The installed files have the same names as those for this machine.
same_files_as_here() {
  local here
  here=$(uname -m)
  DESTDIR=$folder/here PREFIX=/usr scripts/install.sh install "$target/release"
  DESTDIR=$folder/there PREFIX=/usr scripts/install.sh install "$release"
  diff <(cd "$folder/here" && find . | sort) <(cd "$folder/there" && find . | sort)
  # The man pages, the completions and the documents are the same bytes.
  diff -r "$folder/here/usr/share" "$folder/there/usr/share"
  # The aarch64 command accepts the LIBDIR in which it looks for the library, and refuses this machine's.
  DESTDIR=$folder/multiarch PREFIX=/usr LIBDIR=/usr/lib/aarch64-linux-gnu scripts/install.sh install "$release"
  if DESTDIR=$folder/multiarch PREFIX=/usr LIBDIR="/usr/lib/$here-linux-gnu" scripts/install.sh install "$release"; then return 1; fi
}

rpm_is_for_this_processor() {
  [ "$(rpm -qp --qf '%{ARCH}' "$folder"/first/anyring-*-1.aarch64.rpm)" = aarch64 ]
  rpm -qpl "$folder"/first/anyring-*-1.aarch64.rpm | grep -qx /usr/lib64/anyring/libanyring.so
}

boms_name_what_is_built_in() {
  local bom
  ANYRING_TOOLS=$target/tools dist "$folder/with-boms"
  for bom in anyring libanyring anyring-lab-worker; do grep -q '"anyring-engine"' "$folder/with-boms/$bom"-*-aarch64.cdx.json; done
}

# The steps on the emulated machine. /bin/anyring is the script's own copy; the package's is in /usr/bin.
# shellcheck disable=SC2016 # for the shell over there
over_there='set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p /var/lib/dpkg/updates /var/lib/dpkg/info /var/lib/dpkg/triggers /var/log
printf "Package: libc6\nStatus: install ok installed\nArchitecture: arm64\nVersion: 2.36-9\nMaintainer: x\nDescription: x\n" >/var/lib/dpkg/status
files() { find /usr /etc | sort; }
step() { what=$1; shift; if "$@" >said 2>&1; then echo "program $what: works"; else echo "program $what: fails"; sed "s/^/    /" said; exit 1; fi; }
files >before
step install /usr/bin/dpkg --no-triggers --install /bin/anyring.deb
step version /usr/bin/anyring --version
step doctor /usr/bin/anyring deny -- /usr/bin/anyring doctor
grep -Eq "^ +raw +yes" said && grep -Eq "^ +preload +yes" said
job="fio --name=job --filename=data --rw=randrw --size=1m --verify=crc32c --iodepth=8"
if /usr/bin/anyring deny -- $job --ioengine=io_uring >said 2>&1; then echo "program fio: fails: served without anyring"; exit 1; fi
step fio /usr/bin/anyring deny -- /usr/bin/anyring run -- $job --ioengine=io_uring
# The drop-ins, without the command and without LD_PRELOAD: programs are linked with their names.
dropin=/usr/lib/anyring/dropin
if /usr/bin/anyring deny --aio -- $job --ioengine=libaio >said 2>&1; then echo "program dropin-fio: fails: served without the drop-in"; exit 1; fi
step dropin-fio-libaio env LD_LIBRARY_PATH=$dropin ANYRING_AIO=user /usr/bin/anyring deny --aio -- $job --ioengine=libaio
if /usr/bin/anyring deny -- nop 1000 >said 2>&1; then echo "program dropin-nop: fails: served without the drop-in"; exit 1; fi
step dropin-nop env LD_LIBRARY_PATH=$dropin ANYRING_BACKEND=user /usr/bin/anyring deny -- nop 1000
# The output must be that of liburing from Debian on the kernel. Exceptions are an error that Linux 6.1 numbers in its
# own way, and times, which an emulated processor does not keep.
lines() { sed "s/^unregister buf ring again: -22$/unregister buf ring again: -2/; s/ NOT IN TIME/ in time/" "$1"; }
for program in basic waits; do
  "$program" >kernel
  lines kernel >"$program.kernel"
  step "dropin-$program" env LD_LIBRARY_PATH=$dropin ANYRING_BACKEND=user /usr/bin/anyring deny -- "$program"
  lines said >"$program.ours"
  step "dropin-$program-alike" diff "$program.kernel" "$program.ours"
done
step purge /usr/bin/dpkg --no-triggers --purge anyring
files >after
step as-before diff before after'

# C programs that use liburing, linked with the drop-in.
compile() {
  "${tools}gcc" -std=gnu17 -O1 -idirafter /usr/include -o "$folder/bin/$1" "$2" "$release/dist/dropin/liburing.so.2"
}

works_over_there() {
  local status=0
  HOST_ARCH=aarch64 HOST_TIMEOUT_S=${HOST_TIMEOUT_S:-900} HOST_PACKAGES="dpkg libc-bin fio liburing2" \
    HOST_PROGRAMS="$folder/bin/anyring.deb $folder/bin/basic $folder/bin/waits $folder/bin/nop" \
    scripts/host.sh "$folder/bin" 6.1 sh -c "$over_there" sh >"$folder/said" 2>&1 || status=$?
  cat "$folder/said"
  [ "$status" = 0 ]
}

case_ "a release for aarch64 is the same bytes twice, signed, and joins that for another processor" same_twice
case_ "all its programs and libraries are for aarch64" all_for_this_processor
case_ "they need no glibc newer than 2.17" need_no_newer_glibc
if [ -e "$target/release/dist/man1/anyring.1" ]; then
  case_ "the files installed are those for this machine" same_files_as_here
else
  skip_ "the files for this machine" "$target/release has none: make build makes them"
fi
if command -v rpmbuild >/dev/null; then
  case_ "the RPM is for aarch64" rpm_is_for_this_processor
else
  skip_ "the RPM" "there is no rpmbuild here (Debian: rpm)"
fi
if command -v lintian >/dev/null; then
  case_ "lintian has no error and no warning" lintian --fail-on error,warning --allow-root "$folder"/first/anyring_*_arm64.deb
else
  skip_ "lintian" "it is not installed (Debian: lintian)"
fi
[ -z "${FULL:-}" ] || case_ "the SBOMs name what is built in" boms_name_what_is_built_in

if ! command -v qemu-system-aarch64 >/dev/null || [ ! -e /usr/include/liburing.h ]; then
  skip_ "the emulated machine" "no qemu-system-aarch64 or no liburing.h here (Debian: qemu-system-arm, liburing-dev)"
else
  mkdir "$folder/bin"
  ln -s "$release"/{anyring,libanyring.so} "$folder/bin"
  # scripts/host.sh asks for the cases, which are left to `make aarch64`.
  ln -s anyring "$folder/bin/anyring-conformance-plain"
  install -m 755 "$folder"/first/anyring_*_arm64.deb "$folder/bin/anyring.deb"
  compile basic tests/c/basic.c && compile waits tests/c/waits.c && compile nop tests/e2e/clients/nop.c
  case_ "dpkg installs and purges it there, and fio and the drop-ins work" works_over_there
fi
finish
