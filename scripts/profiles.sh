#!/usr/bin/env bash
# Runs anyring's engine where more than io_uring is missing, below `anyring deny --profile P` for each profile. It runs
# some of the engine's C programs, and the conformance cases as the user who runs this script. If that user is root, the
# cases also run as an ordinary user.
#
# usage: scripts/profiles.sh BIN       (BIN: the folder with anyring and anyring-conformance)
#
# The cases run with one set of flags, through libc's door. They also run through raw instructions where the profile
# permits the filter that these need.
set -euo pipefail

bin=$(realpath "$1")
profiles=(docker rhel8 gvisor minimal)
lists=$(cd "$(dirname "$0")/../tests/conformance" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
# Where an ordinary user can read it, and with a place to write.
mkdir "$folder/bin" && install -m 1777 -d "$folder/tmp"
cp "$bin/anyring" "$bin/anyring-conformance" "$bin/libanyring.so" "$folder/bin"
cp "$lists"/differences*.txt "$folder"
export TMPDIR=$folder/tmp

# conformance NAME PROFILE WORDS...: WORDS is the command that starts it as another user.
conformance() {
  local name=$1 profile=$2 expect=(--expect "$folder/differences.txt") doors=(--door libc --door raw)
  shift 2
  if [ -e "$folder/differences-$profile.txt" ]; then
    expect+=(--expect "$folder/differences-$profile.txt")
  fi
  "$@" "$folder/bin/anyring" deny --profile "$profile" -- "$folder/bin/anyring" run --backend user --aio user -- \
    "$folder/bin/anyring-conformance" --quiet --jobs $((2 * $(nproc))) --confirm 3 "${doors[@]}" "${expect[@]}" \
    >"$folder/$name.log" 2>&1 ||
    touch "$folder/$name.failed"
}

# programs NAME PROFILE: runs the engine's C programs that depend on calls which the profiles refuse.
programs() {
  local name=$1 profile=$2
  # Without RWF_NOWAIT each read goes to a worker, so that a program may take a minute beside load.
  ANYRING_TEST_PATIENCE=600 ANYRING_TEST_BELOW="$folder/bin/anyring deny --profile $profile --" \
    "$lists/../../scripts/cargo-test.sh" --locked --quiet -p anyring-inject --test engine -- fork a_child_ generations \
    message_wakes deferred ping_pong losing_a flags_of record_locks whatever_cancels handler_ >"$folder/$name.log" 2>&1 ||
    touch "$folder/$name.failed"
}

# The cases mostly sleep: the two users of a profile go side by side.
runs=()
for profile in "${profiles[@]}"; do
  runs+=("$profile-as-$(id -un)")
  conformance "${runs[-1]}" "$profile" env &
  if [ "$(id -u)" = 0 ]; then
    runs+=("$profile-as-65534")
    conformance "${runs[-1]}" "$profile" setpriv --reuid=65534 --regid=65534 --clear-groups &
  fi
  wait
done
for profile in rhel8 minimal; do
  runs+=("$profile-programs")
  programs "$profile-programs" "$profile"
done

total=0 failed=0 skipped=0
for name in "${runs[@]}"; do
  echo "--- $name"
  # Indented, so that only the last line of all counts.
  grep -v -e '^known ' -e '^$' "$folder/$name.log" | sed 's/^/  /' || true
  read -r passed bad missed < <(awk '
    /^test result: /                                 { gsub(/[^0-9 ]/, ""); p = $1; f = $2; s = $3 }
    /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p = $1; f = $3; s = $5 }
    /^flaky: [0-9]+$/                                { f -= $2; s += $2 }
    /^skipped: /                                     { s++; p-- }
    END                                              { print p + 0, f + 0, s + 0 }' "$folder/$name.log")
  # A run that failed without counting a failure did not reach its end: its log says why.
  if [ -e "$folder/$name.failed" ] && [ "$bad" = 0 ]; then
    bad=1
  fi
  total=$((total + passed)) failed=$((failed + bad)) skipped=$((skipped + missed))
done
if [ "$(id -u)" != 0 ]; then
  echo "skip: every profile as another user: only root can become one"
  skipped=$((skipped + ${#profiles[@]}))
fi
echo "$total passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
