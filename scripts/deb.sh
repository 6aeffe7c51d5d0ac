#!/usr/bin/env bash
# Makes a Debian package of what scripts/build.sh built, the same bytes each time: OUT/anyring_VERSION_amd64.deb, or
# arm64 as RELEASE is.
#
# usage: [SOURCE_DATE_EPOCH=S] scripts/deb.sh RELEASE OUT
#
# The script needs dpkg-deb, and nothing of debhelper. The package is for Debian 11 and newer and for distributions
# derived from them. It needs no glibc newer than 2.17, except for the programs that `anyring lab` and `anyring advise`
# measure.
set -euo pipefail
cd "$(dirname "$0")/.."

release=${1:?usage: scripts/deb.sh RELEASE OUT} out=${2:?usage: scripts/deb.sh RELEASE OUT}
# shellcheck source=scripts/processor.sh
. scripts/processor.sh
processor_of "$release/anyring"
version=$(scripts/version.sh)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(scripts/version.sh date)} LC_ALL=C TZ=UTC
umask 022
mkdir -p "$out"
work=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-deb-XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root documents=$work/root/usr/share/doc/anyring

DESTDIR=$root PREFIX=/usr STRIP=1 scripts/install.sh install "$release" >/dev/null
# Where Debian has them, and in the form.
mkdir -p "$root/usr/share/zsh/vendor-completions" "$root/usr/share/lintian/overrides" "$root/DEBIAN"
mv "$root/usr/share/zsh/site-functions/_anyring" "$root/usr/share/zsh/vendor-completions/"
rmdir "$root/usr/share/zsh/site-functions"
# For compilers of one processor.
multiarch=$root/usr/lib/$processor-linux-gnu
mkdir -p "$multiarch/pkgconfig"
mv "$root/usr/lib/pkgconfig/anyring.pc" "$multiarch/pkgconfig/"
rmdir "$root/usr/lib/pkgconfig"
# shellcheck disable=SC2016 # pkg-config's variable
sed -i 's|^prefix=.*|prefix=${pcfiledir}/../../..|' "$multiarch/pkgconfig/anyring.pc"
chmod 644 "$root"/usr/lib/anyring/*.so "$root"/usr/lib/anyring/dropin/*
gzip -9n "$root"/usr/share/man/man?/*
mv "$documents/CHANGELOG.md" "$work/changelog.md"
gzip -9nc "$work/changelog.md" >"$documents/CHANGELOG.md.gz"
install -m 644 packaging/debian/copyright "$documents/copyright"
install -m 644 packaging/debian/lintian-overrides "$root/usr/share/lintian/overrides/anyring"
printf 'anyring (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- %s  %s\n' "$version" \
  "${DEBFULLNAME:-anyring} <${DEBEMAIL:-anyring@users.noreply.github.com}>" "$(date -Rud "@$SOURCE_DATE_EPOCH")" |
  gzip -9n >"$documents/changelog.gz"
cat >"$root/DEBIAN/control" <<CONTROL
Package: anyring
Version: $version
Section: utils
Priority: optional
Architecture: $debian
Maintainer: ${DEBFULLNAME:-anyring} <${DEBEMAIL:-anyring@users.noreply.github.com}>
Installed-Size: $(du -k --apparent-size -s "$root" | cut -f1)
Depends: libc6 (>= 2.17)
Suggests: libc6 (>= 2.34)
Homepage: https://github.com/anyring/anyring
Description: io_uring for programs where the kernel refuses it
 anyring serves io_uring and Linux AIO in user space, inside the program's own
 process, where a container, a hardened system or a cloud refuses them. Where
 the kernel's io_uring works, it steps aside.
 .
 "anyring lab" and "anyring advise" need glibc 2.34 or newer.
CONTROL
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Zxz --build "$root" "$out/anyring_${version}_$debian.deb" >/dev/null
echo "$out/anyring_${version}_$debian.deb"
