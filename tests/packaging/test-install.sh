#!/usr/bin/env bash
# Installs into a DESTDIR, moves the result, runs it from there, and uninstalls.
#
# usage: tests/packaging/test-install.sh TARGET       (TARGET/release holds what `make build` built)
set -euo pipefail
cd "$(dirname "$0")/../.."

target=$(realpath "${1:?usage: tests/packaging/test-install.sh TARGET}")
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-install-XXXXXX")
trap 'rm -rf "$folder"' EXIT
unset LD_PRELOAD ANYRING_LIBRARY ANYRING_BACKEND ANYRING_AIO ANYRING_STATS ANYRING_LOG ANYRING_RAW
# shellcheck source=tests/kit/cases.sh
. tests/kit/cases.sh

# A make of our own, since this may run below `make test` with its variables and flags.
make_() { env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS CARGO_TARGET_DIR="$target" make --no-print-directory "$@"; }

# crates/inject/tests/unwinding.rs checks those of the development profile.
tables_are_right_at_each_instruction() {
  "$target/debug/anyring-xtask" check-unwinding "$target"/release/{libanyring.so,dist/dropin/liburing.so.2,dist/dropin/liburing-ffi.so.2}
}

# files FOLDER: the installed files, one path a line.
files() { (cd "$1" && find . ! -type d | sort); }

installs_without_building() {
  # A cargo or compiler that is called fails the install.
  mkdir -p "$folder/no-tools"
  for tool in cargo cc gcc; do
    printf '#!/bin/sh\necho "%s was called" >&2\nexit 1\n' "$tool" >"$folder/no-tools/$tool"
    chmod +x "$folder/no-tools/$tool"
  done
  PATH=$folder/no-tools:$PATH make_ install-strip DESTDIR="$folder/staged" PREFIX=/opt/anyring
  for file in bin/anyring lib/anyring/libanyring.so lib/anyring/anyring-lab-worker \
    lib/anyring/libanyring.so.0 lib/anyring/libanyring.a include/anyring.h lib/pkgconfig/anyring.pc \
    lib/anyring/dropin/liburing.so.2 lib/anyring/dropin/libaio.so.1 share/man/man1/anyring.1 \
    share/man/man1/anyring-run.1 share/man/man7/anyring.7 share/bash-completion/completions/anyring share/doc/anyring/docs/limits.md; do
    [ -f "$folder/staged/opt/anyring/$file" ] || { echo "$file is not installed"; return 1; }
  done
  [ "$(ls "$folder/staged")" = opt ] && links_lead_somewhere "$folder/staged/opt/anyring/share/doc/anyring"
}

# links_lead_somewhere FOLDER: the link targets of the documents there are installed, too.
links_lead_somewhere() {
  local document link broken=0
  while read -r document; do
    for link in $(grep -oE '\]\([^)#: ]+[)#]' "$document" | sed 's/^..//; s/.$//'); do
      [ -e "$(dirname "$document")/$link" ] && continue
      echo "${document#"$1"/} links to $link, which is not installed"
      broken=1
    done
  done < <(find "$1" -name '*.md')
  return $broken
}

# The tools that `make setup` installs, and those that it installs with, are not in PATH.
builds_without_setup() {
  local tool recipe
  mkdir -p "$folder/no-setup"
  for tool in apt-get dpkg python3 pip node fio qemu-img postgres mariadbd patchelf musl-gcc flock chromium debootstrap; do
    printf '#!/bin/sh\necho "%s was called" >&2\nexit 1\n' "$tool" >"$folder/no-setup/$tool"
    chmod +x "$folder/no-setup/$tool"
  done
  recipe=$(make_ -n build)
  if grep setup <<<"$recipe"; then return 1; fi
  PATH=$folder/no-setup:$PATH make_ build
}

# A user's build builds everything once, with one profile.
builds_once() {
  local real
  real=$(command -v cargo)
  mkdir -p "$folder/one-build"
  printf '#!/bin/sh\necho "$*" >>"%s"\nexec "%s" "$@"\n' "$folder/cargo-calls" "$real" >"$folder/one-build/cargo"
  chmod +x "$folder/one-build/cargo"
  PATH=$folder/one-build:$PATH make_ build
  [ "$(wc -l <"$folder/cargo-calls")" = 1 ] && grep -q -e ' --release ' "$folder/cargo-calls" || { cat "$folder/cargo-calls"; return 1; }
  if grep -q -e --workspace "$folder/cargo-calls"; then cat "$folder/cargo-calls"; return 1; fi
}

runs_where_it_was_moved() {
  local served
  mv "$folder/staged/opt/anyring" "$folder/moved"
  served=$(cd / && "$folder/moved/bin/anyring" run --backend user -- sh -c 'echo "$LD_PRELOAD"')
  [ "$served" = "$folder/moved/lib/anyring/libanyring.so" ] || { echo "preloaded: $served"; return 1; }
}

# doctor tries every door, each with a ring of anyring's.
doctor_finds_every_way() {
  local report
  report=$(cd / && "$folder/moved/bin/anyring" deny -- "$folder/moved/bin/anyring" doctor)
  for way in preload liburing syscall raw; do
    grep -Eq "^ +$way +yes" <<<"$report" || { echo "$report"; return 1; }
  done
}

lab_finds_its_worker() { "$folder/moved/bin/anyring" lab load --runs 3; }

# The drop-in instead of the preload: a program linked with liburing.so.2 finds ours first.
dropin_serves() {
  local client=$target/e2e/nop output
  [ -x "$client" ] || tests/e2e/clients/build.sh "$target/e2e"
  output=$(LD_LIBRARY_PATH=$folder/moved/lib/anyring/dropin ANYRING_BACKEND=user \
    "$folder/moved/bin/anyring" deny -- "$client" 1000)
  grep -q verified <<<"$output" || { echo "$output"; return 1; }
}

# Linux AIO likewise: fio is linked with libaio.so.1.
libaio_dropin_serves() {
  local job=(fio --name=dropin --ioengine=libaio --rw=randrw --size=1m --verify=crc32c "--directory=$folder" "--aux-path=$folder")
  if "$folder/moved/bin/anyring" deny --aio -- "${job[@]}" >"$folder/fio.log" 2>&1; then return 1; fi
  LD_LIBRARY_PATH=$folder/moved/lib/anyring/dropin ANYRING_AIO=user \
    "$folder/moved/bin/anyring" deny --aio -- "${job[@]}" >"$folder/fio.log" 2>&1 || { cat "$folder/fio.log"; return 1; }
}

pages_are_sound() {
  local page
  for page in "$folder"/moved/share/man/man[17]/*; do
    if command -v man >/dev/null; then
      output=$(man --warnings -l "$page" 2>&1 >/dev/null)
      [ -z "$output" ] || { echo "$page: $output"; return 1; }
    fi
    grep -q '^\.SH NAME' "$page"
  done
  bash -n "$folder/moved/share/bash-completion/completions/anyring"
  if grep -r entry-point "$folder/moved/share/bash-completion" "$folder/moved/share/man"; then return 1; fi
}

# example LANGUAGE NUMBER: that block of docs/embedding.md, as it is written, from where the prefix was moved; the program that it
# ends with is served where io_uring is refused, without a wrapper.
example() {
  local documents=$folder/moved/share/doc/anyring work=$folder/example-$1-$2 commands
  commands=$(awk -v wanted="$2" '/^```$/ { inside = 0 } inside; /^```sh$/ { inside = ++count == wanted }' "$documents/docs/embedding.md")
  cp -r "$documents/docs/examples/$1" "$work"
  cd "$work"
  export PKG_CONFIG_PATH=$folder/moved/lib/pkgconfig
  bash -euxc "${commands%$'\n'*}"
  "$folder/moved/bin/anyring" deny -- bash -euc "${commands##*$'\n'}" >said
  cat said
  grep -qx 'served by anyring' said && grep -qx '64 bytes' said
}

# After liburing in the link order its functions are not used, and it says so.
order_is_said() {
  local work=$folder/order
  mkdir "$work"
  export PKG_CONFIG_PATH=$folder/moved/lib/pkgconfig
  # shellcheck disable=SC2046 # words
  cc "$folder/moved/share/doc/anyring/docs/examples/c/read.c" -o "$work/read" -Wl,--no-as-needed -luring $(pkg-config --cflags --libs anyring)
  if "$work/read" 2>"$work/said"; then return 1; fi
  grep -q 'File exists' "$work/said"
}

# Without the file of the library; and a program linked with it names it as the loader finds it.
archive_is_inside() {
  if readelf -d "$folder/example-c-4/read" | grep -q libanyring; then return 1; fi
  readelf -d "$folder/example-c-1/read" | grep -q 'NEEDED.*libanyring.so.0]'
}

uninstalls_everything() {
  mkdir -p "$folder/staged/opt"
  mv "$folder/moved" "$folder/staged/opt/anyring"
  # A file of another program: it stays.
  touch "$folder/staged/opt/anyring/share/man/man1/other.1"
  make_ uninstall DESTDIR="$folder/staged" PREFIX=/opt/anyring
  [ "$(files "$folder/staged")" = ./opt/anyring/share/man/man1/other.1 ] || { files "$folder/staged"; return 1; }
  [ -z "$(find "$folder/staged/opt/anyring" -mindepth 1 -name 'anyring*')" ]
}

libdir_is_one_that_the_command_knows() {
  local libdir
  for libdir in lib64 lib/x86_64-linux-gnu; do
    make_ install DESTDIR="$folder/other" PREFIX=/usr LIBDIR=/usr/$libdir
    "$folder/other/usr/bin/anyring" run --backend user -- true
    make_ uninstall DESTDIR="$folder/other" PREFIX=/usr LIBDIR=/usr/$libdir
    [ -z "$(files "$folder/other")" ] || { files "$folder/other"; return 1; }
  done
  if make_ install DESTDIR="$folder/other" PREFIX=/usr LIBDIR=/elsewhere; then return 1; fi
  [ -z "$(files "$folder/other")" ]
}

case_ "tables are right at each instruction" tables_are_right_at_each_instruction
case_ "make build needs nothing that make setup installs" builds_without_setup
case_ "make build calls cargo once, for what is installed" builds_once
case_ "make install calls no compiler and installs below DESTDIR only" installs_without_building
case_ "run works from where the prefix was moved" runs_where_it_was_moved
case_ "doctor finds every way in working there" doctor_finds_every_way
case_ "lab finds its worker there" lab_finds_its_worker
case_ "the drop-in liburing.so.2 serves" dropin_serves
case_ "the drop-in libaio.so.1 serves" libaio_dropin_serves
command -v man >/dev/null || echo "note: no man(1) here, so the man pages are not rendered, only looked at"
case_ "man pages and completions are sound" pages_are_sound
if [ -e /usr/include/liburing.h ] && command -v pkg-config >/dev/null; then
  case_ "a C program is served that is linked with anyring" example c 1
  case_ "a C program is served that has anyring inside" example c 4
  case_ "what they need is what was linked" archive_is_inside
  case_ "the wrong order of libraries is said" order_is_said
  if command -v meson >/dev/null; then case_ "so with Meson" example c 2; else skip_ "so with Meson" "no meson here"; fi
  if command -v cmake >/dev/null; then case_ "so with CMake" example c 3; else skip_ "so with CMake" "no cmake here"; fi
else
  skip_ "programs that are linked with anyring" "no liburing-dev or no pkg-config here"
fi
case_ "make uninstall leaves nothing of ours" uninstalls_everything
case_ "LIBDIR is where the command looks, or refused" libdir_is_one_that_the_command_knows
finish
