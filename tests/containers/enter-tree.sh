#!/usr/bin/env bash
# Makes a debootstrapped system the root of this mount namespace, and runs a command there.
#
# usage: unshare --mount --pid --cgroup --fork --kill-child --propagation private tests/containers/enter-tree.sh TREE WORK COMMAND ARGS...
#
# The command sees WORK and, read-only, this checkout under their own names. What it writes elsewhere goes to WORK/tree, so that
# TREE stays as it is. /var/lib/docker and /var/lib/containers are folders there, since overlayfs does not lie on overlayfs.
# All of it ends with the namespaces.
set -euo pipefail

tree=$(realpath "$1") work=$(realpath "$2")
sources=$(cd "$(dirname "$0")/../.." && pwd)
shift 2

layers=$work/tree root=$work/tree/root
mkdir -p "$layers"/{upper,work} "$root" "$layers/state"/{docker,containers}
mount -t overlay -o "lowerdir=$tree,upperdir=$layers/upper,workdir=$layers/work" engines "$root"
cd "$root"
# The old root is never mounted over, so its folders are bound first.
mkdir -p "./$work" "./$sources" var/lib/docker var/lib/containers old-root
# Devices with the usual permissions, whatever this machine's are.
mount -t tmpfs -o mode=755 dev dev
for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 fuse:10:229; do
  IFS=: read -r name major minor <<<"$device"
  mknod -m 666 "dev/$name" c "$major" "$minor"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 shm dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=1777 tmp tmp
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --bind "$sources" "./$sources"
mount -o remount,bind,ro "./$sources"
mount --bind "$work" "./$work"
mount --bind "$layers/state/docker" var/lib/docker
mount --bind "$layers/state/containers" var/lib/containers
cp --remove-destination /etc/resolv.conf etc/resolv.conf
grep -q ' localhost' etc/hosts 2>/dev/null || echo '127.0.0.1 localhost' >>etc/hosts

# The control groups below this namespace's own, mounted as outside.
if grep -qE '^[^ ]+ /sys/fs/cgroup cgroup2 ' /proc/mounts; then
  mount -t cgroup2 cgroup2 sys/fs/cgroup
  # A group with controllers for its children has no processes itself.
  mkdir sys/fs/cgroup/init
  while read -r process; do echo "$process" >sys/fs/cgroup/init/cgroup.procs || true; done <sys/fs/cgroup/cgroup.procs
  for controller in $(cat sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >sys/fs/cgroup/cgroup.subtree_control || true
  done
else
  mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
  mapfile -t mounts < <(grep ' cgroup ' /proc/mounts)
  for line in "${mounts[@]}"; do
    read -r _ folder type options _ <<<"$line"
    [ "$type" = cgroup ] || continue
    name=$(basename "$folder")
    mkdir "sys/fs/cgroup/$name"
    # A hierarchy's name is its controllers: the mount options without the flags.
    controllers=$(tr , '\n' <<<"$options" | grep -vxE 'rw|ro|relatime|noatime|nosuid|nodev|noexec|xattr|clone_children' | paste -sd,)
    mount -t cgroup -o "$controllers" cgroup "sys/fs/cgroup/$name"
  done
fi

pivot_root . old-root
cd /
umount --lazy /old-root
"$@"
