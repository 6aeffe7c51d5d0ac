#!/usr/bin/env bash
# Runs a command with the built programs on another kernel, which is one of Debian's, booted in QEMU.
#
# usage: scripts/host.sh BIN KERNEL COMMAND ARGS...   (BIN: the folder with anyring, libanyring.so, anyring-conformance-plain)
#
# KERNEL is 5.10, 6.1, 6.12, a kernel of Debian's backports (6.18, 7.2 ...), or `newest`, the kernel of Debian sid. 6.12-16k
# and later ones are kernels for aarch64 with pages of 16 KiB. The command finds the programs of BIN and busybox's by its
# PATH. The lists of tests/conformance/ are in /lists, and an ext4 file system is at TMPDIR. The output and status of the
# command are those of this script.
#
#   HOST_ARCH       aarch64: what was built is for that, and such a machine is emulated (x86_64)
#   HOST_PROGRAMS   further programs, names or paths: they go along with the libraries that ldd names
#   HOST_PACKAGES   packages of the kernel's suite whose files are there, too, with all that they depend on
#   HOST_CPU        QEMU's model of the processor (the default of KVM: host; emulated: Nehalem with XSAVE and AVX, or max)
#   HOST_TIMEOUT_S  when the machine is stopped, with status 124 (900)
#
# The script uses KVM where the processor has it, and otherwise emulates the processor. apt-get fetches and checks the
# packages, which needs no root, and they are unpacked into .build/hosts. If the packages or QEMU are unavailable, a
# line gives the reason, and the status is 77.
set -euo pipefail

[ $# -ge 3 ] || { sed -n '2,18s/^# \?//p' "$0" >&2 && exit 2; }
bin=$(realpath "$1") kernel=$2 arch=${HOST_ARCH:-x86_64}
shift 2
cd "$(dirname "$0")/.."
# shellcheck source=scripts/apt.sh
. scripts/apt.sh

programs=("$bin"/{anyring,libanyring.so,anyring-conformance-plain})

for program in ${HOST_PROGRAMS:-}; do
  programs+=("$(command -v "$program")") || { echo "host.sh: $program: no such program" >&2 && exit 2; }
done
# Debian's name of the processor, QEMU's package, the tools' prefix, and the terminals of console, output and status.
case $arch in
  x86_64) debian=amd64 package=qemu-system-x86 prefix='' terminals=(ttyS0 ttyS1 ttyS2) ;;
  aarch64) debian=arm64 package=qemu-system-arm prefix=aarch64-linux-gnu- terminals=(ttyAMA0 ttyS0 ttyS1) ;;
  *) echo "host.sh: HOST_ARCH=$arch: it must be x86_64 or aarch64" >&2 && exit 2 ;;
esac
# The kernel modules that a disk with a file system needs.
modules='virtio virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk crc16 crc32c_generic crc32c-cryptoapi
  libcrc32c mbcache jbd2 ext4'

no() {
  echo "skip: $*"
  exit 77
}

# suites_of KERNEL: the suite that has the kernel, and the suite that this one depends on.
suites_of() {
  case ${1%-16k} in
    5.10) echo bullseye ;;
    6.1) echo bookworm ;;
    6.12) echo trixie ;;
    newest) echo sid ;;
    [5-9].[0-9]*) echo trixie-backports trixie ;;
    *) echo "host.sh: $1: it must be 5.10, 6.1, 6.12, 6.18 ... or newest" >&2 && return 1 ;;
  esac
}

# fetch FOLDER SUITES...: the kernel as FOLDER/vmlinuz, its modules in FOLDER/modules, busybox in FOLDER.
fetch() {
  [ -e "$1/vmlinuz" ] && return
  rm -rf "$1"
  mkdir -p "$1"
  local reason="no apt-get or no dpkg-deb here"
  if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    if download "$PWD/$1/work" "${@:2}" >"$1/log" 2>&1 && unpack "$1" >>"$1/log" 2>&1; then
      rm -rf "$1/work"
      return
    fi
    reason=$(grep -m1 '^[EW]: ' "$1/log" || tail -n 1 "$1/log")
  fi
  rm -rf "$1/work"
  no "Linux $kernel cannot be had from Debian ${*:2}: $reason"
}

download() {
  local image packages
  apt_prepare "$1" "$(printf "deb [arch=$debian signed-by=$DEBIAN_KEYS] $DEBIAN_MIRROR %s main\n" "${@:2}")" &&
    fetch_apt apt-get update || return
  # The suite's own kernel, or one of several in backports.
  local flavour=$debian base=$kernel
  [ "${kernel%-16k}" = "$kernel" ] || flavour+=-16k base=${kernel%-16k}
  image=$(fetch_apt apt-cache depends "linux-image-$flavour" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
  if [ $# -gt 2 ]; then
    image=$(fetch_apt apt-cache pkgnames "linux-image-$base." | grep -E "^[^-]*-[^-]*-[^-]*-$flavour\$" | sort -V | tail -n 1)
  fi
  [ -n "$image" ] || { echo "E: no kernel is named there" && return 1; }
  # Newer releases have the modules and the kernel itself in packages of their own.
  packages=$(fetch_apt apt-cache pkgnames linux- | grep -Fx -e "$image" -e "${image/image/modules}" -e "${image/image/binary}")
  # shellcheck disable=SC2086 # a list of words
  (cd "$1" && fetch_apt apt-get download $packages busybox-static)
}

fetch_apt() { apt "$1" -o APT::Architecture="$debian" -o APT::Architectures="$debian" "${@:2}"; }

# fetch_packages FOLDER SUITE PACKAGES...: puts their files, and those of all packages that they depend on, into FOLDER.
fetch_packages() {
  [ -e "$1/packages" ] && [ "$(cat "$1/packages")" = "${*:3}" ] && return
  rm -rf "$1"
  mkdir -p "$1/files"
  local package
  apt_prepare "$PWD/$1/work" "deb [arch=$debian signed-by=$DEBIAN_KEYS] $DEBIAN_MIRROR $2 main" >"$1/log" 2>&1 &&
    { fetch_apt apt-get update && fetch_apt apt-get install --download-only "${@:3}"; } >>"$1/log" 2>&1 ||
    no "${*:3} cannot be had from Debian $2: $(grep -m1 '^[EW]: ' "$1/log" || tail -n 1 "$1/log")"
  for package in "$1"/work/cache/archives/*.deb; do dpkg-deb --extract "$package" "$1/files"; done
  rm -rf "$1/work"
  echo "${*:3}" >"$1/packages"
}

unpack() {
  local package module file root=$1/work/root
  for package in "$1"/work/*.deb; do dpkg-deb --extract "$package" "$root" || return; done
  mkdir -p "$1/modules"
  for module in $modules; do
    # Not every kernel has each as a module.
    file=$(find "$root" -name "$module.ko*" -print -quit)
    case $file in
      *.ko) cp "$file" "$1/modules" ;;
      *.ko.xz) xz -dc "$file" >"$1/modules/$module.ko" ;;
      *.ko.zst) zstd -qdc "$file" >"$1/modules/$module.ko" ;;
    esac || return
  done
  cp "$(find "$root" -path '*bin/busybox' -print -quit)" "$1/busybox"
  cp "$(find "$root" -type f -name 'vmlinuz*' -print -quit)" "$1/vmlinuz"
}

# The first process: it becomes nobody's child, mounts what programs expect, and stops the machine after the command.
first_process() {
  cat <<EOF
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts && mount -t tmpfs shm /dev/shm && mount -t devpts pts /dev/pts
ln -s /proc/self/fd /dev/fd
ip link set lo up
ulimit -n 524288
# A module loads only after those that it needs, so all are tried several times.
for round in 1 2 3 4 5 6; do
  for module in /modules/*.ko; do insmod "\$module" 2>/dev/null; done
done
for tty in ${terminals[*]:1}; do stty -F /dev/\$tty raw; done
mount -t ext4 /dev/vda /scratch || { echo "no file system" >/dev/${terminals[1]} && reboot -f; }
chmod 1777 /scratch
export PATH=/bin:/usr/bin HOME=/ TMPDIR=/scratch
cd /scratch
$(printf '%q ' "$@") </dev/null >/dev/${terminals[1]} 2>&1
echo \$? >/dev/${terminals[2]}
sync
reboot -f
EOF
}

suites=$(suites_of "$kernel")
command -v "qemu-system-$arch" >/dev/null || no "no qemu-system-$arch here (Debian's package $package)"
PATH=$PATH:/usr/sbin command -v mkfs.ext4 >/dev/null || no "no mkfs.ext4 here"
command -v cpio >/dev/null || no "no cpio here"
host=.build/hosts/$kernel${HOST_ARCH:+-$arch}
# shellcheck disable=SC2086 # a list of words
fetch "$host" $suites
# shellcheck disable=SC2086 # lists of words
[ -z "${HOST_PACKAGES:-}" ] || fetch_packages "$host-packages" ${suites%% *} $HOST_PACKAGES

machine=$(mktemp -d)
trap 'rm -rf "$machine"' EXIT
root=$machine/root
mkdir -p "$root"/{bin,proc,sys,dev,tmp,scratch,modules,lists,etc,lib,lib64}
chmod 1777 "$root/tmp"
cp "$host/busybox" "$root/bin"
cp "$host"/modules/*.ko "$root/modules"
cp tests/conformance/*.txt tests/conformance/oracle*.json "$root/lists"
printf 'root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$root/etc/passwd"
for program in "${programs[@]}"; do
  # A script stays as it is.
  "${prefix}strip" -o "$root/bin/${program##*/}" "$program" 2>/dev/null || cp "$program" "$root/bin"
  [ "$arch" = x86_64 ] || continue
  { ldd "$program" 2>/dev/null || true; } | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^\t\(\/[^ ]*\) .*/\1/p'
done | sort -u | xargs -r cp -L --parents -t "$root"
# ldd cannot list the libraries for another processor, so all of the cross compilers' C library is copied.
[ "$arch" = x86_64 ] || cp -L "/usr/$arch-linux-gnu"/lib/*.so.[0-9] "$root/lib"
if [ -n "${HOST_PACKAGES:-}" ]; then
  cp -r "$host-packages/files/." "$root"
  # Their loader belongs to their C library.
  find "$root/usr/lib" -maxdepth 1 -name 'ld-linux-*' -exec cp -L {} "$root/lib" \;
fi
first_process "$@" >"$root/init"
chmod 755 "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc) >"$machine/initramfs"
truncate -s 2G "$machine/disk"
PATH=$PATH:/usr/sbin mkfs.ext4 -q "$machine/disk"

terminal() { echo "-chardev file,id=$1,path=$machine/$1 -device pci-serial,chardev=$1"; }
# shellcheck disable=SC2207 # lists of words
case $arch in
  x86_64) devices=(-serial "file:$machine/output" -serial "file:$machine/status") model=Nehalem,+xsave,+xsaveopt,+avx,+fsgsbase ;;
  aarch64) devices=(-machine virt $(terminal output) $(terminal status)) model=max,pauth-impdef=on,sme=off ;;
esac
acceleration=(-accel tcg,thread=multi -cpu "${HOST_CPU:-$model}")
if [ "$arch" = "$(uname -m)" ] && [ -w /dev/kvm ] && grep -qwE 'svm|vmx' /proc/cpuinfo; then
  acceleration=(-accel kvm -cpu "${HOST_CPU:-host}")
fi
boot() {
  stopped=0
  : >"$machine/output" >"$machine/status"
  timeout "${HOST_TIMEOUT_S:-900}" "qemu-system-$arch" "${acceleration[@]}" -smp 2 -m 3G -nodefaults -no-reboot -display none \
    -kernel "$host/vmlinuz" -initrd "$machine/initramfs" -append "console=${terminals[0]} panic=-1 quiet" \
    -drive "file=$machine/disk,format=raw,if=virtio,cache=unsafe" \
    -serial "file:$machine/console" "${devices[@]}" || stopped=$?
}
boot
# QEMU's emulation may run an old copy of an instruction that the kernel has replaced. That ends the kernel while it
# starts. It is started again, unless the command has written something.
for _ in 1 2; do
  [ ! -s "$machine/output" ] && [ ! -s "$machine/status" ] && grep -aq 'Kernel panic' "$machine/console" || break
  echo "host.sh: Linux $kernel panicked before the command began; it is started again" >&2
  boot
done
cat "$machine/output"
status=$(tr -dc 0-9 <"$machine/status")
if [ -z "$status" ]; then
  echo "host.sh: Linux $kernel ended without the command's status; its console:" >&2
  { grep -a -m 4 -e 'BUG:' -e 'Oops' -e 'RIP:' "$machine/console" || true; tail -n 5 "$machine/console"; } >&2
  status=$((stopped ? stopped : 1))
fi
exit "$status"
