# For other scripts to source: apt-get with its own lists, beside the machine's, for packages that are only unpacked.

DEBIAN_MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
DEBIAN_KEYS=/usr/share/keyrings/debian-archive-keyring.gpg

# apt_prepare FOLDER LINE: FOLDER for the lists and what is fetched, LINE the only source, with DEBIAN_KEYS' signatures.
apt_prepare() {
  apt_folder=$1
  rm -rf "$apt_folder"
  mkdir -p "$apt_folder/lists/partial" "$apt_folder/cache/archives/partial"
  touch "$apt_folder/status"
  echo "$2" >"$apt_folder/sources"
}

# apt COMMAND ARGS: without root, and without a look at what the machine has.
apt() {
  local command=$1
  shift
  timeout 300 "$command" -q -y -o Dir::Etc::SourceList="$apt_folder/sources" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State="$apt_folder" -o Dir::State::Status="$apt_folder/status" -o Dir::Cache="$apt_folder/cache" \
    -o Dir::Log="$apt_folder" -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=3 -o Acquire::Languages=none \
    -o APT::Install-Recommends=false "$@"
}
