#!/usr/bin/env bash
# Makes an RPM package of what scripts/build.sh built: OUT/anyring-VERSION-1.x86_64.rpm, or
# aarch64 as RELEASE is.
#
# usage: [SOURCE_DATE_EPOCH=S] scripts/rpm.sh RELEASE OUT
set -euo pipefail
cd "$(dirname "$0")/.."

release=$(realpath "${1:?usage: scripts/rpm.sh RELEASE OUT}") out=${2:?usage: scripts/rpm.sh RELEASE OUT}
# shellcheck source=scripts/processor.sh
. scripts/processor.sh
processor_of "$release/anyring"
version=$(scripts/version.sh)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(scripts/version.sh date)} LC_ALL=C TZ=UTC
umask 022
mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-rpm-XXXXXX")
trap 'rm -rf "$work"' EXIT

# The macros that date and name what it makes, so that it is the same bytes each time.
rpmbuild -bb --quiet --target "$processor" --define "_topdir $work" --define "_rpmdir $work/out" --define "_buildhost anyring" \
  --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" --define "_binary_payload w9.gzdio" \
  --define "anyring_version $version" --define "anyring_sources $PWD" --define "anyring_release $release" packaging/anyring.spec
cp "$work"/out/$processor/*.rpm "$out/"
echo "$out/anyring-$version-1.$processor.rpm"
