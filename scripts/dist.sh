#!/usr/bin/env bash
# Makes the files of a release in OUT. The same toolchain makes the same bytes in any folder.
#
# usage: [CARGO_BUILD_TARGET=T] [KEEP=] [NO_SBOM=] [SOURCE_DATE_EPOCH=S] [ANYRING_SIGNING_KEY=KEY] scripts/dist.sh TARGET OUT [RELEASE]
#
# cargo builds in a folder of its own in TARGET, so that the files contain no path of this machine. With RELEASE the
# build in RELEASE is packed instead, which tests only the packing. CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu makes
# the files for that processor; with KEEP=1 beside those that OUT has already. OUT gets, for x86_64 or aarch64,
#
#   anyring-VERSION-x86_64-linux.tar.gz   what `make install` installs, to be used where it is unpacked
#   anyring-VERSION-x86_64-linux          the static program alone, for images that get one file
#   anyring_VERSION_amd64.deb (arm64)     the same as a Debian package, where there is dpkg-deb
#   anyring-VERSION-1.x86_64.rpm          and as an RPM, where there is rpmbuild
#   anyring-conformance-VERSION-x86_64.tar.gz   the conformance cases as one static program, for other kernels
#   anyring-VERSION-src.tar.gz            the sources
#   *-VERSION-x86_64.cdx.json             what is built in, of each program and library: CycloneDX, by cargo-cyclonedx
#   SHA256SUMS, SHA256SUMS.sig            the latter by the OpenSSH private key that ANYRING_SIGNING_KEY holds, if it holds one
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: [CARGO_BUILD_TARGET=T] [KEEP=] [NO_SBOM=] [SOURCE_DATE_EPOCH=S] [ANYRING_SIGNING_KEY=KEY] $0 TARGET OUT [RELEASE]"
target=${1:?$usage} out=${2:?$usage} release=${3:-}
VERSION=$(scripts/version.sh)
CYCLONEDX=0.5.9
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(scripts/version.sh date)}
# Sorting and the names of days are the same everywhere.
export LC_ALL=C TZ=UTC
umask 022
# shellcheck source=scripts/processor.sh
. scripts/processor.sh
cargo_target

name=anyring-$VERSION-$processor-linux
mkdir -p "$out"
out=$(realpath "$out") target=$(realpath -m "$target")
work=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-dist-XXXXXX")
trap 'rm -rf "$work"' EXIT

# build: builds with the folders' names replaced in the compiler's output. The flags are given by --config, so they are
# added to those of .cargo/config.toml, and a build in another folder has the same names for the same crates.
build() {
  local cargo_home=${CARGO_HOME:-$HOME/.cargo}
  local flags="build.rustflags=['--remap-path-prefix=$PWD=/anyring','--remap-path-prefix=$target=/target','--remap-path-prefix=$cargo_home=/cargo']"
  CARGO_CONFIG=$flags scripts/build.sh "$target/dist"
  release=$target/dist${CARGO_BUILD_TARGET:+/$CARGO_BUILD_TARGET}/release
  # The environment's flags replace those of the configuration. An incremental build would depend on earlier builds.
  local static="-C target-feature=+crt-static --remap-path-prefix=$PWD=/anyring --remap-path-prefix=$target=/target --remap-path-prefix=$cargo_home=/cargo"
  RUSTFLAGS=$static CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$target/dist cargo build --locked -p anyring-conformance \
    --bin anyring-conformance --target "$processor-unknown-linux-gnu"
  cases=$target/dist/$processor-unknown-linux-gnu/debug/anyring-conformance
}

# The conformance cases with a README of their own, the record and the licences.
conformance() {
  local name=anyring-conformance-$VERSION-$processor
  mkdir "$work/$name"
  install -m 755 "$cases" "$work/$name/anyring-conformance"
  "${tools}strip" --strip-unneeded "$work/$name/anyring-conformance"
  install -m 644 packaging/conformance/README.md tests/conformance/oracle.json LICENSE-APACHE LICENSE-MIT "$work/$name/"
  pack "$work" "$name"
}

# pack FOLDER NAME: FOLDER/NAME as OUT/NAME.tar.gz, with one time, one owner and one order.
pack() {
  tar -C "$1" --format=ustar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - "$2" |
    gzip -9n >"$out/$2.tar.gz"
}

# The SBOMs: the crates built into the command, into the library and into the lab's worker.
sbom() {
  local tools=${ANYRING_TOOLS:-$target/tools} part crate
  [ -x "$tools/bin/cargo-cyclonedx" ] ||
    env -u CARGO_BUILD_TARGET cargo install --quiet --locked --version "$CYCLONEDX" --root "$tools" --target-dir "$tools/build" cargo-cyclonedx
  # cargo-cyclonedx writes beside each manifest, so it gets a copy of the sources. Its output names the copy's folder.
  cp -r "$work/anyring-$VERSION-src" "$work/sbom"
  "$tools/bin/cargo-cyclonedx" cyclonedx -qq --format json --spec-version 1.5 --target "$processor-unknown-linux-gnu" --no-build-deps \
    --override-filename bom --manifest-path "$work/sbom/Cargo.toml"
  for part in anyring:cli libanyring:inject anyring-lab-worker:lab; do
    crate=${part#*:}
    sed "s|$work/sbom|/anyring|g" "$work/sbom/crates/$crate/bom.json" >"$out/${part%:*}-$VERSION-$processor.cdx.json"
  done
}

sign() {
  local key=$work/key
  (umask 077 && printf '%s\n' "$ANYRING_SIGNING_KEY" >"$key")
  ssh-keygen -q -Y sign -n anyring-release -f "$key" "$out/SHA256SUMS"
}

# The static program of the cases, where scripts/build.sh puts it, or `build` for another processor.
cases=$target/check/anyring-conformance-gnu
[ -z "${CARGO_BUILD_TARGET:-}" ] || cases=$target/dist/$CARGO_BUILD_TARGET/debug/anyring-conformance
[ -n "$release" ] || build
processor_of "$release/anyring"
[ "$name" = "anyring-$VERSION-$processor-linux" ] || { echo "dist: $release is for $processor" >&2 && exit 1; }
# Removes the files of an earlier release.
[ -n "${KEEP:-}" ] || find "$out" -maxdepth 1 -type f -name '*anyring[-_]*' -delete
rm -f "$out"/SHA256SUMS*
DESTDIR=$work PREFIX=/$name STRIP=1 scripts/install.sh install "$release" >/dev/null
pack "$work" "$name"
install -m 755 "$work/$name/bin/anyring" "$out/$name"
if [ -e "$cases" ]; then conformance; else echo "dist: no $cases, so no conformance cases"; fi
if command -v dpkg-deb >/dev/null; then scripts/deb.sh "$release" "$out" >/dev/null; else echo "dist: no dpkg-deb here, so no Debian package"; fi
if command -v rpmbuild >/dev/null; then scripts/rpm.sh "$release" "$out" >/dev/null; else echo "dist: no rpmbuild here, so no RPM"; fi
# The sources are those of git's HEAD: a change that is not committed is in no release.
git archive --prefix="anyring-$VERSION-src/" HEAD | tar -x -C "$work"
pack "$work" "anyring-$VERSION-src"
[ -n "${NO_SBOM:-}" ] || sbom
(cd "$out" && find . -maxdepth 1 -name '*anyring[-_]*' -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS)
if [ -n "${ANYRING_SIGNING_KEY:-}" ]; then sign; else echo "dist: not signed: ANYRING_SIGNING_KEY holds no key"; fi
echo "dist: $out"
cat "$out/SHA256SUMS"
