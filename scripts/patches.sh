# shellcheck shell=bash
# What the scripts share that change a copy of the source by patches. They source it, and set `here`, the repository, and
# `patches`, a folder.

# chosen NAME...: the patches that are called so, or begin so, without .patch, one a line; all of them if no name is given.
chosen() {
  local patch name wanted
  for patch in "$patches"/*.patch; do
    name=$(basename "$patch" .patch)
    for wanted in "${@:-$name}"; do
      if [[ $name == "$wanted"* ]]; then
        echo "$name"
        break
      fi
    done
  done | grep . || { echo "no patch is called that: $*" >&2 && return 2; }
}

# enter_copy FOLDER: makes FOLDER/tree a copy of the source and goes there. It is the same folder each time, so that cargo,
# which builds in FOLDER, knows its packages again; one script at a time has it.
enter_copy() {
  local tree=$1/tree
  mkdir -p "$1" && exec 9>"$1/lock" && flock 9 && rm -rf "$tree" && mkdir "$tree" &&
    (cd "$here" && git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$tree") &&
    cd "$tree"
}

# apply NAME [OPTION]: patches the copy. Files get a new date, so that cargo sees the change.
apply() {
  patch --quiet --strip=1 --no-backup-if-mismatch --input "$patches/$1.patch" "${@:2}"
}
