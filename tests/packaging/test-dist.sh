#!/usr/bin/env bash
# Checks the files of a release: they are the same bytes twice, complete, signed, and work where they are unpacked.
#
# usage: [FULL=1] tests/packaging/test-dist.sh TARGET       (TARGET/release holds what `make build` built)
#
# Without FULL it packs the existing build twice. With FULL=1 it builds everything twice, in two folders, with an SBOM.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=$(realpath "${1:?usage: tests/packaging/test-dist.sh TARGET}")
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-dist-test-XXXXXX")
trap 'rm -rf "$folder"' EXIT
unset LD_PRELOAD ANYRING_LIBRARY ANYRING_BACKEND ANYRING_AIO ANYRING_STATS ANYRING_LOG ANYRING_RAW ANYRING_SIGNING_KEY
# shellcheck source=tests/kit/cases.sh
. tests/kit/cases.sh

# dist NAME: makes the files of a release in FOLDER/NAME, in another environment each time.
dist() {
  local name=$1
  if [ -z "${FULL:-}" ]; then
    NO_SBOM=1 scripts/dist.sh "$target" "$folder/$name" "$target/release"
    return
  fi
  git clone -q . "$folder/sources-of-$name"
  ANYRING_TOOLS=$target/tools "$folder/sources-of-$name/scripts/dist.sh" "$folder/built-of-$name" "$folder/$name"
}

same_twice() {
  (umask 077 && TZ=Asia/Tokyo dist first)
  # Another folder, and another moment.
  sleep 1
  (umask 002 && LC_ALL=C.UTF-8 dist the-second)
  diff -r "$folder/first" "$folder/the-second"
}

no_path_of_this_machine() {
  if grep -aqF -e "$folder" -e "$HOME/" "$folder"/first/anyring-*-linux; then return 1; fi
  mkdir "$folder/looked-at"
  for file in "$folder"/first/anyring-{*-linux,conformance-*}.tar.gz; do tar -C "$folder/looked-at" -xf "$file"; done
  if grep -arlF -e "$folder" -e "$HOME/" "$folder/looked-at"; then return 1; fi
}

boms_name_what_is_built_in() {
  python3 - "$folder"/first/*.cdx.json <<'PYTHON'
import json, sys
for file in sys.argv[1:]:
    bom = json.load(open(file))
    names = {part["name"] for part in bom["components"]}
    assert bom["bomFormat"] == "CycloneDX" and {"anyring-engine", "rustix", "libc"} <= names, (file, names)
    assert not names & {"criterion", "anyring-conformance"}, file
assert len(sys.argv) == 4, sys.argv
PYTHON
}

sums_hold() { (cd "$folder/first" && sha256sum --check --strict --quiet SHA256SUMS && [ "$(wc -l <SHA256SUMS)" = "$(find . -name '*anyring[-_]*' | wc -l)" ]); }

works_where_it_is_unpacked() {
  local tree report
  tar -C "$folder" -xf "$folder"/first/anyring-*-linux.tar.gz
  tree=$(echo "$folder"/anyring-*-linux)
  report=$(cd / && "$tree/bin/anyring" deny -- "$tree/bin/anyring" doctor)
  for way in preload liburing syscall raw; do
    grep -Eq "^ +$way +yes" <<<"$report" || { echo "$report"; return 1; }
  done
}

# The single file, without a library beside it: the programs that it starts are guests.
single_file_serves() {
  mkdir "$folder/alone"
  cp "$folder"/first/anyring-*-linux "$folder/alone/anyring"
  "$folder/alone/anyring" deny -- "$folder/alone/anyring" run --backend user --stats "$folder/counters" -- "$folder/alone/anyring" --version
}

# The conformance cases alone: on this kernel, and under a refusal.
cases_run_alone() {
  local tree
  tar -C "$folder" -xf "$folder"/first/anyring-conformance-*.tar.gz
  tree=$(echo "$folder"/anyring-conformance-*-x86_64)
  cd "$tree"
  ./anyring-conformance --tap --filter nop:: --oracle oracle.json >"$folder/tap"
  grep -qx 'TAP version 14' "$folder/tap" && grep -q '^1\.\.[1-9]' "$folder/tap"
  if grep '^not ok' "$folder/tap"; then return 1; fi
  ./anyring-conformance --keeps --filter nop:: >"$folder/keeps"
  grep -q '^Linux .* claims and breaks 0; ' "$folder/keeps"
  # Without io_uring no claim is kept, and each case reports it.
  if "$target/release/anyring" deny -- ./anyring-conformance --keeps --filter nop:: --release 6.18 >"$folder/broken"; then return 1; fi
  grep -q '^Linux 6.18 keeps 0 of ' "$folder/broken" && grep -q '^broken: nop::' "$folder/broken"
}

# packaging/Dockerfile.scratch, step by step; with /proc and /dev/null, which container engines bring.
image_from_scratch() {
  local instruction words root=$folder/image
  mkdir "$root"
  while read -r instruction words; do
    case $instruction in
      FROM) [ "$words" = scratch ] ;;
      COPY) cp "$folder/first/${words% *}" "$root${words#* }" ;;
      ENTRYPOINT) [ "$words" = '["/anyring"]' ] ;;
      CMD) [ "$words" = '["doctor"]' ] ;;
      '#'* | '') ;;
      *) echo "$instruction is not known here"; return 1 ;;
    esac
  done <packaging/Dockerfile.scratch
  mkdir "$root/proc" "$root/dev"
  touch "$root/dev/null"
  # shellcheck disable=SC2016 # for the shell in the namespaces
  "$target/release/anyring" deny -- unshare --map-root-user --mount --pid --fork sh -ec \
    'mount -t proc proc "$1/proc"; mount --bind /dev/null "$1/dev/null"; exec chroot "$1" /anyring doctor' sh "$root" | grep -E '^ +guest +yes'
}

signature_is_of_the_sums() {
  local key
  ssh-keygen -q -t ed25519 -N '' -C release -f "$folder/key"
  key=$(cat "$folder/key")
  NO_SBOM=1 ANYRING_SIGNING_KEY=$key scripts/dist.sh "$target" "$folder/signed" "$target/release"
  echo "release $(cat "$folder/key.pub")" >"$folder/signers"
  verify() { ssh-keygen -Y verify -q -f "$folder/signers" -I release -n anyring-release -s "$folder/signed/SHA256SUMS.sig" <"$1"; }
  verify "$folder/signed/SHA256SUMS" && sed 's/^./x/' "$folder/signed/SHA256SUMS" >"$folder/changed"
  if verify "$folder/changed"; then return 1; fi
  # No file contains the key itself.
  if grep -raqF "$(sed -n 3p "$folder/key")" "$folder/signed"; then return 1; fi
}

case_ "a release is the same bytes twice" same_twice
case_ "SHA256SUMS is of all its files" sums_hold
case_ "the tarball works where it is unpacked" works_where_it_is_unpacked
case_ "the single file serves a program" single_file_serves
case_ "the conformance cases run alone and say which claims hold" cases_run_alone
# Every step except the build and the push, in a clone; and states that are no release.
release_is_checked() {
  local clone=$folder/clone
  git clone -q . "$clone"
  cd "$clone"
  git config user.name release && git config user.email release@localhost
  make_release() { NO_SBOM=1 CARGO_TARGET_DIR=$folder/released scripts/release.sh "$target/release"; }
  make_release
  [ "$(git rev-list -n 1 "v$(scripts/version.sh)")" = "$(git rev-parse HEAD)" ]
  grep -q '^- ' "$folder/released/out/NOTES.md" && [ -f "$folder/released/out/recipes/APKBUILD" ]
  echo >>README.md
  if make_release 2>/dev/null; then echo "a change that is not committed passes"; return 1; fi
  git commit -qam changed
  if make_release 2>/dev/null; then echo "a tag of another commit passes"; return 1; fi
  git tag -d "v$(scripts/version.sh)" >/dev/null
  sed -i '0,/^## /s/^## .*/## [Unreleased]/' CHANGELOG.md && git commit -qam unreleased
  if make_release 2>/dev/null; then echo "an undated section passes"; return 1; fi
}

if unshare --map-root-user --mount --pid --fork --mount-proc true 2>/dev/null; then
  case_ "an image of the single file alone works" image_from_scratch
else
  skip_ "an image of the single file" "this machine lets nobody make a user namespace"
fi
if command -v ssh-keygen >/dev/null; then
  case_ "the signature is of SHA256SUMS, by the key of the environment" signature_is_of_the_sums
else
  skip_ "the signature" "no ssh-keygen here (Debian: openssh-client)"
fi
case_ "scripts/release.sh makes files, notes and the tag, of a dated commit only" release_is_checked
if [ -n "${FULL:-}" ]; then
  case_ "nothing built knows a folder of this machine" no_path_of_this_machine
  case_ "the SBOMs name what is built in" boms_name_what_is_built_in
fi
finish
