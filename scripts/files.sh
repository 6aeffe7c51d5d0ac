#!/usr/bin/env bash
# Runs random programs on files, whose every byte is compared with a model (tests/files), on each file system that can
# be had here.
#
# usage: scripts/files.sh BIN SECONDS|fio [OPTIONS...]
#
# BIN is the folder with anyring-files, anyring and libanyring.so. OPTIONS go to `anyring-files run`. With SECONDS
# "fio", fio writes and verifies there instead. The file systems on loop devices, overlayfs and FUSE are mounted in a
# mount namespace of this script, and end with it. One that is not available is skipped, with the reason.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin

if [ -z "${ANYRING_FILES_MOUNTS:-}" ]; then
  # Where no namespace can be made, the folders that are there already have to do.
  if [ "$(id -u)" = 0 ] && unshare --mount true 2>/dev/null; then
    ANYRING_FILES_MOUNTS=yes exec unshare --mount --propagation private "$0" "$@"
  fi
  ANYRING_FILES_MOUNTS=no
fi

bin=$(realpath "${1:?usage: scripts/files.sh BIN SECONDS|fio [OPTIONS...]}")
seconds=${2:?usage: scripts/files.sh BIN SECONDS|fio [OPTIONS...]}
work=$(mktemp -d /var/tmp/anyring-files-XXXXXX)
memory=$(mktemp -d /dev/shm/anyring-files-XXXXXX)
mounts=() folders=() skipped=0
clean() {
  local mount
  for mount in "${mounts[@]}"; do umount "$mount" || umount --lazy "$mount"; done
  rm -rf --one-file-system "$work" "$memory"
}
trap clean EXIT

skip() {
  skipped=$((skipped + 1))
  echo "skip: $1: $2"
}

# add NAME FOLDER: says what it is.
add() {
  folders+=(--folder "$2")
  echo "$1: $2 ($(stat --file-system --format=%T "$2"))"
}

# try NAME FOLDER COMMAND...: mounts by the command, which says what is wrong in its last line.
try() {
  local name=$1 folder=$2 said
  shift 2
  mkdir -p "$folder"
  if [ "$ANYRING_FILES_MOUNTS" = no ]; then
    skip "$name" "only root can mount it, in a mount namespace"
  elif ! command -v "$1" >/dev/null; then
    skip "$name" "$1 is not installed"
  elif said=$("$@" 2>&1); then
    mounts=("$folder" "${mounts[@]}")
    add "$name" "$folder"
  else
    skip "$name" "$(tail -n 1 <<<"$said")"
  fi
}

# on_loop FOLDER TYPE OPTIONS...: makes a file system in an image on tmpfs, and mounts it.
on_loop() {
  local folder=$1 type=$2
  shift 2
  command -v "mkfs.$type" >/dev/null || { echo "mkfs.$type is not installed" && return 1; }
  truncate --size 512M "$memory/$type" && "mkfs.$type" -q "$@" "$memory/$type" && mount -o loop "$memory/$type" "$folder"
}

mkdir -p "$work"/{disk,lower,upper,temporary} "$memory/tmpfs"
add tmpfs "$memory/tmpfs"
add disk "$work/disk"
# The program's file is new there, so it is in the upper folder.
try overlayfs "$work/overlay" mount -t overlay overlay \
  -o "lowerdir=$work/lower,upperdir=$work/upper,workdir=$work/temporary" "$work/overlay"
try xfs "$work/xfs" on_loop "$work/xfs" xfs
try btrfs "$work/btrfs" on_loop "$work/btrfs" btrfs
# Blocks that are smaller than pages.
try ext4-1k "$work/ext4" on_loop "$work/ext4" ext4 -b 1024
mkdir -p "$work/below"
try fuse "$work/fuse" bindfs "$work/below" "$work/fuse"

# verify FOLDER RUN...: fio's verification of each kind, by each of the engine's options in turn.
verify() {
  local folder=$1 kind direct index=0 output
  local options=(--nonvectored=1 --nonvectored=0 --fixedbufs=1 --registerfiles=1 --sqthread_poll=1 --force_async=3)
  local modes=(write randwrite rw randrw)
  shift
  for kind in md5 crc7 crc16 crc32 crc32c crc64 sha1 sha256 sha512 sha3-256 xxhash pattern; do
    for direct in 0 1; do
      index=$((index + 1))
      local job=(--name="$kind" --directory="$folder" --size=8m --bsrange=4k-64k --direct=$direct --iodepth=16
        --ioengine=io_uring --rw="${modes[index % 4]}" "${options[index % 6]}" --randseed=$index --verify="$kind"
        --verify_fatal=1 --do_verify=1 --verify_state_save=0 --output-format=terse)
      if [ "$kind" = pattern ]; then job+=(--verify_pattern=0xa5%o); fi
      if output=$("$@" fio "${job[@]}" 2>&1); then
        passed=$((passed + 1))
      elif ! fio "${job[@]}" >/dev/null 2>&1; then
        skip "fio, $kind, direct=$direct in $folder" "fails natively, too: $(head -n 1 <<<"$output")"
      else
        failed=$((failed + 1))
        echo "FAIL fio ${job[*]}: $output"
      fi
      rm -f "$folder/$kind".*
    done
  done
}

status=0 passed=0 failed=0
if [ "$seconds" = fio ]; then
  for ((at = 1; at < ${#folders[@]}; at += 2)); do verify "${folders[at]}" "$bin/anyring" run --backend user --; done
  if [ "$failed" != 0 ]; then status=1; fi
else
  "$bin/anyring-files" run --seconds "$seconds" "${folders[@]}" "${@:3}" || status=$?
fi
# As scripts/summary.sh counts.
echo "$passed passed, $failed failed, $skipped skipped"
exit $status
