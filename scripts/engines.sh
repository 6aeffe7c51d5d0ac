#!/usr/bin/env bash
# Runs anyring in real container engines and in systemd services. The engines are Docker, podman as root and rootless,
# gVisor and LXC, of Debian 12 and sid (gVisor: 13).
#
# usage: scripts/engines.sh TARGET [TREE/ENGINE...]      (such as sid/docker bookworm/podman; all without)
# ONLY=WORDS keeps the tests whose names contain these words.
#
# The engines' packages are in separate systems, which debootstrap makes and TARGET/engines keeps, so that nothing is
# installed on this machine. Each engine runs in its own namespaces for mounts, processes and control groups
# (tests/containers/enter-tree.sh). There tests/containers/in_engines.py starts the daemons and runs the tests of
# tests/containers/engine_tests.py. No image is pulled: the base images are debootstrap's, and the build stage of
# packaging/Dockerfile finds the build in TARGET. Packages come from Debian only. At the end only TARGET/engines is
# left. WRITE=1 writes the table of docs/containers.md anew.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/kit/base.sh
. tests/kit/base.sh

target=$(realpath "${1:?usage: scripts/engines.sh TARGET [TREE/ENGINE...]}")
shift
wanted=("$@")
all=(sid/docker sid/runsc-systrap sid/runsc-ptrace sid/podman sid/podman-rootless
  bookworm/docker bookworm/runsc-ptrace bookworm/podman bookworm/podman-rootless bookworm/lxc)
[ $# != 0 ] || wanted=("${all[@]}")
WHAT="container engines"
PACKAGES=docker.io,podman,netavark,crun,ca-certificates,iproute2,fuse-overlayfs,uidmap,python3
kept=$target/engines

# The program runsc of Debian 13: as sid builds it, it panics.
fetch_runsc() {
  local work=$kept/runsc-work
  [ ! -e "$kept/runsc" ] || return 0
  apt_prepare "$work" "deb [arch=amd64 signed-by=$DEBIAN_KEYS] $DEBIAN_MIRROR trixie main" && apt apt-get update &&
    (cd "$work" && apt apt-get download runsc) && dpkg-deb --extract "$work"/runsc_*.deb "$work/root" &&
    mv "$work/root/usr/bin/runsc" "$kept/runsc" && rm -rf "$work"
}

need_libc bookworm
need_chroots bookworm
mkdir -p "$kept"
make_base "$target/containers" bookworm
for tree in $(printf '%s\n' "${wanted[@]%%/*}" | sort -u); do
  extra=runsc,lxc
  if [ "$tree" = sid ]; then extra=docker-cli,docker-compose; fi
  make_tree "$kept/$tree" "$tree" "$PACKAGES,$extra"
done
if [ -d "$kept/sid" ]; then
  fetch_runsc >"$kept/runsc.log" 2>&1 || echo "no runsc of Debian 13: $(tail -n 1 "$kept/runsc.log")"
  if [ -e "$kept/runsc" ]; then cp "$kept/runsc" "$kept/sid/usr/bin/runsc"; fi
fi

work=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-engines-XXXXXX")
chmod 755 "$work"
group=$(basename "$work")

# The hierarchies of control groups in which this process may make groups.
hierarchies() { findmnt -t cgroup,cgroup2 -no TARGET; }

clean() {
  local hierarchy left
  # After an interrupt the processes end with their namespace, in a moment. Their control groups remain until then.
  for _ in $(seq 100); do
    left=
    for hierarchy in $(hierarchies); do
      [ ! -d "$hierarchy/$group" ] || find "$hierarchy/$group" -depth -type d -exec rmdir {} \; 2>/dev/null
      [ ! -d "$hierarchy/$group" ] || left=1
    done
    [ -n "$left" ] || break
    sleep 0.1
  done
  rm -rf --one-file-system "$work"
}
trap clean EXIT

# program NAME COMMAND...: builds a program for the containers by the command, to which the file's name is added. If that
# fails, NAME.why gives the reason, and the program's test is skipped.
program() {
  local name=$1
  shift
  "$@" "$work/programs/$name" >"$work/programs/$name.why" 2>&1 ||
    { rm -f "$work/programs/$name" && echo "it does not compile here: $(tail -n 1 "$work/programs/$name.why")" >"$work/programs/$name.why"; }
}

programs() {
  local headers=(-idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu) archive=/usr/lib/x86_64-linux-gnu/liburing.a
  mkdir -p "$work/programs/lists"
  tests/e2e/clients/build.sh "$target/e2e"
  cp "$target/e2e/tokio-uring" "$work/programs"
  strip -o "$work/programs/anyring-conformance-plain" "$target/check/anyring-conformance-plain"
  cp tests/conformance/*.txt "$work/programs/lists"
  program nop-musl musl-gcc -static -O2 "${headers[@]}" tests/e2e/clients/nop.c "$archive" -o
  program static-liburing cc -static -O2 -pthread tests/e2e/clients/static-liburing.c "$archive" -o
  program go env CGO_ENABLED=0 GO111MODULE=off GOFLAGS= GOCACHE="$kept/go-cache" go build -C crates/cli/tests/go -o
  mkdir "$work/programs/postgres"
  if ! scripts/postgres.sh place "$work/programs/postgres" >"$work/programs/postgres.bin"; then
    mv "$work/programs/postgres.bin" "$work/programs/postgres.why"
    rm -rf "$work/programs/postgres"
  fi
}

# Copies the base image, and the built files, so that `make` in the build stage finds them.
bases() {
  cp --reflink=auto "$target/containers/bookworm.tar" "$work/base.tar"
  mkdir -p "$work/built/release"
  cp -rL "$target"/release/{anyring,libanyring.so,anyring-lab-worker,dist} "$work/built/release"
}

# in_tree TREE ENGINE...: in a control group of its own, which it sees as the root of all.
in_tree() {
  local tree=$1 hierarchy file
  shift
  for hierarchy in $(hierarchies); do
    mkdir -p "$hierarchy/$group"
    for file in cpuset.cpus cpuset.mems; do
      if [ -e "$hierarchy/$file" ]; then cat "$hierarchy/$file" >"$hierarchy/$group/$file"; fi
    done
  done
  (
    for hierarchy in $(hierarchies); do echo "$BASHPID" >"$hierarchy/$group/cgroup.procs"; done
    PYTHONDONTWRITEBYTECODE=1 exec unshare --mount --pid --cgroup --fork --kill-child --propagation private \
      tests/containers/enter-tree.sh "$kept/$tree" "$work" \
      python3 "$PWD/tests/containers/in_engines.py" "$work" "$tree" "$@"
  )
}

echo "preparing programs and base images in $work"
programs
bases
: >"$work/rows"
total=0 failed=0 skipped=0
for tree in $(printf '%s\n' "${wanted[@]%%/*}" | sort -ur); do
  mapfile -t engines < <(printf '%s\n' "${wanted[@]}" | sed -n "s|^$tree/||p")
  status=0
  in_tree "$tree" "${engines[@]}" 2>&1 | tee "$work/log" | sed -u 's/^\([0-9]\+ passed\)/  \1/' || status=$?
  read -r passed bad missed < <(awk '
    /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p = $1; f = $3; s = $5 }
    END                                              { print p + 0, f + 0, s + 0 }' "$work/log")
  # A run that failed without counting a failure did not reach its end.
  if [ "$status" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
  total=$((total + passed)) failed=$((failed + bad)) skipped=$((skipped + missed))
  # The tree's layers and states are only needed until its end.
  rm -rf --one-file-system "${work:?}/tree"
done
if [ -n "${WRITE:-}" ] && [ "$(wc -l <"$work/rows")" != "${#all[@]}" ]; then
  echo "WRITE=1: docs/containers.md stays as it was: its table is of all ${#all[@]} engines, in one run without names"
elif [ -n "${WRITE:-}" ]; then
  awk -v rows="$work/rows" '
    /^\| engine of Debian/ { print; getline; print; while ((getline line < rows) > 0) print line; old = 1; next }
    old && /^\|/           { next }
                           { old = 0; print }' docs/containers.md >"$work/page"
  cp "$work/page" docs/containers.md
fi
echo "$total passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
