# For other scripts to source: the processor that programs are for, which need not be this machine's.

# processor_named NAME: sets `processor` to uname's name of it (also of a target of rustc's), `debian` to Debian's, and
# `tools` to what stands before the names of its compiler and binutils, which is nothing for this machine's own.
processor_named() {
  processor=${1%%-*} tools=''
  case $processor in
    x86_64) debian=amd64 ;;
    aarch64) debian=arm64 ;;
    *) echo "anyring is for x86_64 and aarch64, not for $processor" >&2 && return 1 ;;
  esac
  [ "$processor" = "$(uname -m)" ] || tools=$processor-linux-gnu-
}

# processor_of FILE: the same for the processor that this program is for, by its ELF header (linux/elf-em.h).
processor_of() {
  case $(od -An -tu2 -j18 -N2 "$1" | tr -d ' ') in
    62) processor_named x86_64 ;;
    183) processor_named aarch64 ;;
    *) echo "$1 is no program for x86_64 or aarch64" >&2 && return 1 ;;
  esac
}

# cargo_target: processor_named for CARGO_BUILD_TARGET (this machine if empty), with a linker for cargo.
cargo_target() {
  local linker
  processor_named "${CARGO_BUILD_TARGET:-$(uname -m)}" || return
  [ -n "$tools" ] || return 0
  linker=CARGO_TARGET_$(echo "$CARGO_BUILD_TARGET" | tr 'a-z-' 'A-Z_')_LINKER
  export "$linker=${!linker:-${tools}gcc}"
  command -v "${!linker}" >/dev/null || { echo "no ${!linker} here, which links for $processor" >&2 && return 1; }
}
