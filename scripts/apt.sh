# For other scripts to source: apt-get with its own lists, beside the machine's, for packages that are only unpacked.

# debian_archives: prints the Debian archives among the sources of this machine's own apt, whether or not their lists were
# fetched. Archives whose path is just /debian come first, since other projects have folders of that name, too.
debian_archives() {
  local archives
  archives=$(apt-get update --print-uris 2>/dev/null | sed -nE "s|^'(https?://.*/debian)/+dists/.*|\1|p" || true)
  grep -E '^https?://[^/]+/debian$' <<<"$archives" || true
  echo "$archives"
}

# DEBIAN_MIRROR, or else the archive that this machine's own apt takes its packages from. Empty where there is none.
DEBIAN_MIRROR=${DEBIAN_MIRROR:-$(debian_archives | sed -n 1p)}
DEBIAN_MIRROR=${DEBIAN_MIRROR%/}
NO_MIRROR="no archive of Debian's is among apt's sources here: name one by DEBIAN_MIRROR"
DEBIAN_KEYS=/usr/share/keyrings/debian-archive-keyring.gpg

# apt_prepare FOLDER LINE: prepares FOLDER for the lists and the fetched files. LINE is the only source.
apt_prepare() {
  [ -n "$DEBIAN_MIRROR" ] || { echo "E: $NO_MIRROR" >&2; return 1; }
  apt_folder=$1
  rm -rf "$apt_folder"
  mkdir -p "$apt_folder/lists/partial" "$apt_folder/cache/archives/partial"
  touch "$apt_folder/status"
  echo "$2" >"$apt_folder/sources"
}

# apt COMMAND ARGS: runs apt-get without root, and without regard to the packages that the machine has.
apt() {
  local command=$1
  shift
  timeout 300 "$command" -q -o APT::Get::Assume-Yes=true -o Dir::Etc::SourceList="$apt_folder/sources" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State="$apt_folder" -o Dir::State::Status="$apt_folder/status" -o Dir::Cache="$apt_folder/cache" \
    -o Dir::Log="$apt_folder" -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=3 -o Acquire::Languages=none \
    -o APT::Install-Recommends=false "$@"
}

# fetch_source PACKAGE SUITE FOLDER FILE: unpacks Debian's source package into FOLDER/source, unless FILE is there already.
# If the package is unavailable, FOLDER/unavailable gives the reason.
fetch_source() {
  local package=$1 suite=$2 folder=$3
  [ -e "$folder/source/$4" ] && return
  rm -rf "$folder"
  mkdir -p "$folder"
  local reason="no apt-get or no dpkg-source here"
  if command -v apt-get >/dev/null && command -v dpkg-source >/dev/null; then
    if download_source "$package" "$suite" "$folder" >"$folder/log" 2>&1; then return; fi
    reason=$(grep -m1 '^[EW]: ' "$folder/log" || tail -n 1 "$folder/log")
  fi
  rm -rf "$folder/source"
  echo "$package's source cannot be had from Debian $suite: $reason" >"$folder/unavailable"
}

download_source() {
  local package=$1 suite=$2 folder=$3 work=$3/work
  apt_prepare "$work" "deb-src [signed-by=$DEBIAN_KEYS] $DEBIAN_MIRROR $suite main" &&
    apt apt-get update &&
    (cd "$work" && apt apt-get source --download-only "$package") &&
    dpkg-source --no-copy --extract "$work/$package"_*.dsc "$folder/source" &&
    rm -rf "$work"
}

# skip_unavailable FOLDER: succeeds if the sources are unavailable. It then prints the lines of a skipped step.
skip_unavailable() {
  [ -e "$1/unavailable" ] || return 1
  echo "skip: $(cat "$1/unavailable")"
  echo "0 passed, 0 failed, 1 skipped"
}
