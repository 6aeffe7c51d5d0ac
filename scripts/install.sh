#!/usr/bin/env bash
# Installs or uninstalls what scripts/build.sh built. It builds nothing, so that root need not run a compiler.
#
# usage: [DESTDIR=] [PREFIX=/usr/local] [LIBDIR=PREFIX/lib] [STRIP=] scripts/install.sh install|uninstall RELEASE
#
# RELEASE is cargo's release folder, of a build for any processor. DESTDIR is put before every path, and no installed
# file contains it. So what is below DESTDIR can be moved to /, and all of PREFIX to any other place: the command finds
# the library relative to itself. With STRIP=1 the symbols that only debuggers read are left out.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  echo "usage: [DESTDIR=] [PREFIX=/usr/local] [LIBDIR=PREFIX/lib] [STRIP=] $0 install|uninstall RELEASE" >&2
  exit 2
}
fail() {
  echo "install: $*" >&2
  exit 1
}

[ $# = 2 ] || usage
# shellcheck source=scripts/processor.sh
. scripts/processor.sh
action=$1 release=$2
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
root=${DESTDIR:-}

case $prefix$root in
  *[[:space:]:$]*) fail "PREFIX and DESTDIR may have no space, colon or \$: LD_PRELOAD allows none in a path" ;;
esac
case $prefix in
  /*) ;;
  *) fail "PREFIX has to be an absolute path, not '$prefix'" ;;
esac
# Without the build, which an uninstall does not need, the files are for this machine's processor.
if [ -f "$release/anyring" ]; then processor_of "$release/anyring"; else processor_named "$(uname -m)"; fi
# The list in crates/cli/src/library.rs: where the command looks for the library.
case $libdir in
  "$prefix/lib" | "$prefix/lib64" | "$prefix/lib/$processor-linux-gnu") ;;
  *) fail "LIBDIR has to be lib, lib64 or lib/$processor-linux-gnu in PREFIX, where the command looks; not '$libdir'" ;;
esac

private=$root$libdir/anyring
share=$root$prefix/share
documents=$share/doc/anyring

# each ACTION: calls ACTION MODE FILE FOLDER for every file.
each() {
  local file
  "$1" 755 "$release/anyring" "$root$prefix/bin"
  "$1" 644 "$release/libanyring.so" "$private"
  "$1" 644 "$release/dist/libanyring.a" "$private"
  "$1" 644 crates/inject/include/anyring.h "$root$prefix/include"
  "$1" 644 packaging/anyring.pc "$root$libdir/pkgconfig"
  "$1" 755 "$release/anyring-lab-worker" "$private"
  "$1" 644 "$release/dist/dropin/liburing.so.2" "$private/dropin"
  "$1" 644 "$release/dist/dropin/liburing-ffi.so.2" "$private/dropin"
  "$1" 644 "$release/dist/dropin/libaio.so.1" "$private/dropin"
  for file in "$release"/dist/man1/*.1; do "$1" 644 "$file" "$share/man/man1"; done
  "$1" 644 "$release/dist/man7/anyring.7" "$share/man/man7"
  # bash-completion looks for a file with the command's bare name.
  "$1" 644 "$release/dist/completions/anyring.bash" "$share/bash-completion/completions" anyring
  "$1" 644 "$release/dist/completions/_anyring" "$share/zsh/site-functions"
  "$1" 644 "$release/dist/completions/anyring.fish" "$share/fish/vendor_completions.d"
  # All that these documents lead to: tests/packaging/test-install.sh follows their links.
  for file in *.md LICENSE-* .github/SECURITY.md; do "$1" 644 "$file" "$documents"; done
  "$1" 644 crates/lab/LICENSE-DejaVu "$documents/crates/lab"
  for file in docs/*.md; do "$1" 644 "$file" "$documents/docs"; done
  for file in docs/programs/*.md; do "$1" 644 "$file" "$documents/docs/programs"; done
  for file in docs/decisions/*.md; do "$1" 644 "$file" "$documents/docs/decisions"; done
  for file in docs/results/*; do "$1" 644 "$file" "$documents/docs/results"; done
  for file in conformance differential files fuzz hostile simulation; do "$1" 644 "tests/$file/README.md" "$documents/tests/$file"; done
  for file in packaging/{Dockerfile,Dockerfile.example,Dockerfile.release,Dockerfile.scratch,cloudnative-pg.yaml,kubernetes.yaml,postgresql.yaml}; do "$1" 644 "$file" "$documents/packaging"; done
  "$1" 644 crates/anyring/README.md "$documents/crates/anyring"
  for file in crates/anyring/examples/*; do "$1" 644 "$file" "$documents/crates/anyring/examples"; done
  for file in docs/examples/c/*; do "$1" 644 "$file" "$documents/docs/examples/c"; done
  "$1" 644 packaging/ci/gitlab.yml "$documents/packaging/ci"
  "$1" 644 packaging/grafana/anyring.json "$documents/packaging/grafana"
  "$1" 644 packaging/seccomp/anyring.json "$documents/packaging/seccomp"
}

check() { [ -f "$2" ] || fail "$2 is missing: make build makes it"; }

put() {
  local to=$3/${4:-$(basename "$2")}
  install -D -m "$1" "$2" "$to"
  if [ -n "${STRIP:-}" ] && [[ $2 == "$release"/* && $2 != */dist/[clm]* ]]; then "${tools}strip" --strip-unneeded "$to"; fi
}

remove() { rm -f "$3/${4:-$(basename "$2")}"; }

case $action in
  install)
    each check
    each put
    # The name by which the loader finds the library for programs that are linked with it.
    ln -sf libanyring.so "$private/libanyring.so.0"
    up=$(realpath -m --relative-to="$libdir/pkgconfig" "$prefix")
    # Installed beside the other documents.
    sed -i 's|](\.\./|](|' "$documents/SECURITY.md"
    sed -i 's|\.github/SECURITY\.md|SECURITY.md|' "$documents/README.md" "$documents"/docs/{release,security}.md
    sed -i "s|@UP@|$up|; s|@LIB@|${libdir#"$prefix"/}|; s|@VERSION@|$(scripts/version.sh)|" "$root$libdir/pkgconfig/anyring.pc"
    echo "installed anyring in $root$prefix"
    ;;
  uninstall)
    # The man pages are listed from the build. If the build is gone, the pages are removed by their names.
    rm -f "$share"/man/man1/anyring.1 "$share"/man/man1/anyring-*.1
    each remove
    rm -f "$private/libanyring.so.0"
    # Only the folders that anyring alone uses. The others (bin, share/man/man1 ...) may have been there before.
    for folder in "$private/dropin" "$private" "$documents/docs/results" "$documents/docs/programs" \
      "$documents/docs/decisions" "$documents/docs/examples/c" "$documents/docs/examples" "$documents/docs" \
      "$documents"/{crates/anyring/examples,crates/anyring,crates/lab,crates,packaging/ci,packaging/grafana,packaging/seccomp,packaging,tests/conformance,tests/differential,tests/files,tests/fuzz,tests/hostile,tests/simulation,tests} "$documents"; do
      if [ -d "$folder" ]; then rmdir --ignore-fail-on-non-empty "$folder"; fi
    done
    echo "uninstalled anyring from $root$prefix"
    ;;
  *) usage ;;
esac
