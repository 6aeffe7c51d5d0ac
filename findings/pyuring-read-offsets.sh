#!/bin/bash
# Expected: UringCtx.read_offsets returns one block for each offset of the list, by the package's documentation.
# Seen: it returns as many bytes of its buffer as were read in all. Each block has its place in that buffer. If a
# read ends at the end of the file, the rest of its place is filled with zero bytes. The last blocks lose as many
# bytes at their ends. Neither an error nor a length reports it. Read in the other order, the same two blocks are
# whole.
# Versions: pyuring 0.3.3 (PyPI, x86-64, with the library that its source archive holds). Needs a kernel that serves
# io_uring. Seen 2026-11-30.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary :all: -d "$tmp" pyuring==0.3.3
tar -xzf "$tmp/pyuring-0.3.3.tar.gz" -C "$tmp"
printf 'aaaabbbbcc' > "$tmp/file"

cat > "$tmp/check.py" <<'PY'
import os, sys
import pyuring

EXPECTED = {(0, 8): b"aaaacc", (8, 0): b"cc\0\0aa", (8, 0, 4): b"cc\0\0aaaabb"}

file = os.open(sys.argv[1], os.O_RDONLY)
failed = False
with pyuring.UringCtx(entries=8) as ring:
    for offsets, expected in EXPECTED.items():
        blocks = ring.read_offsets(file, 4, list(offsets))
        pread = [os.pread(file, 4, offset) for offset in offsets]
        print(f"offsets {offsets}: read_offsets {blocks!r}; pread(2) {pread}")
        failed |= blocks != expected
sys.exit(failed)
PY
PYTHONPATH="$tmp/pyuring-0.3.3" timeout 60 python3 "$tmp/check.py" "$tmp/file"
