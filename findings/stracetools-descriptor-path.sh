#!/bin/bash
# Expected: StraceParser parses a file that strace has written with -f -tt -T and other options, by the package's
# README.
# Seen: with -y, which adds its path to each descriptor, each call that returns a descriptor is left out. The pattern
# for the value of a call ends at the first `<`, where that path begins. So of the opens only those that failed are
# left, and the share of errors that the README shows how to compute is 100 %. The log has a warning for each line.
# Versions: stracetools 1.0.0 (PyPI), strace 6.1-0.1 and libunwind8 1.6.2-3 (Debian 12). Needs permission to trace a
# child. Seen 2026-11-30.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
(cd "$tmp" && apt-get download -q=2 -o APT::Sandbox::User=root strace=6.1-0.1 libunwind8=1.6.2-3 &&
    for package in ./*.deb; do dpkg-deb -x "$package" root; done)
python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --target "$tmp/lib" \
    stracetools==1.0.0

cat > "$tmp/check.py" <<'PY'
import logging, sys
import parser  # of stracetools; alone, it needs no other package

logging.disable(logging.WARNING)
seen = {}
for name in ("plain", "paths"):
    path = f"{sys.argv[1]}/{name}.out"
    with open(path) as file:
        lines = [line for line in file if " openat(" in line]
    events = [event for event in parser.StraceParser().parse_file(path) if event.name == "openat"]
    failed = sum(event.return_value == "-1" for event in events)
    seen[name] = len(lines), len(events), failed
    print(f"{name}: {len(lines)} lines of openat, {len(events)} events, {failed} of them failed")
lines, events, failed = seen["plain"]
sys.exit(not 0 < failed < lines or events != lines or seen["paths"] != (lines, failed, failed))
PY
library=$tmp/root/usr/lib/x86_64-linux-gnu
trace() { LD_LIBRARY_PATH="$library" timeout 30 "$tmp/root/usr/bin/strace" -E LD_LIBRARY_PATH -E LC_ALL=C "$@"; }
touch "$tmp/file"
for name in plain paths; do
    options=(-f -tt -T -o "$tmp/$name.out")
    [ "$name" = plain ] || options+=(-y)
    # Opens the libraries and one file; the other file is not there.
    trace "${options[@]}" cat "$tmp/file" "$tmp/none" 2> "$tmp/error" || grep -q 'No such file' "$tmp/error"
done
PYTHONPATH="$tmp/lib/stracetools" timeout 60 python3 "$tmp/check.py" "$tmp"
