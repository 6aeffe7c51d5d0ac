#!/bin/bash
# Expected: read() without a length reads to the end of the file, as its README promises and as read() of
# Python's io does.
# Seen: it reads to the size that the file had when it was opened. What another process appends later is never returned:
# read() answers '' (end of file) again and again, while read(100) of the same object returns the appended lines. A file
# of /proc has size 0, so read() of it is always ''. Both backends, io_uring and libuv, do the same.
# Versions: py-asyncfiles 1.7.0 (PyPI, wheel for CPython 3.11; other versions of Python need their own wheel). Needs a
# kernel that serves io_uring. Seen 2026-11-29.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary :all: \
    --target "$tmp/lib" py-asyncfiles==1.7.0

cat > "$tmp/check.py" <<'PY'
import asyncio, sys
import asyncfiles


def append(path, text):
    with open(path, "a") as file:
        file.write(text)


async def look(backend, path):
    append(path, "one\n")
    async with asyncfiles.open(path, "r", backend=backend) as log:
        append(path, "two\n")
        seen = [await log.read()]
        append(path, "three\n")
        seen += [await log.read(), await log.read(100)]
    async with asyncfiles.open("/proc/version", "r", backend=backend) as version:
        whole = await version.read()
    async with asyncfiles.open("/proc/version", "r", backend=backend) as version:
        start = await version.read(13)
    return seen, [whole, start]


failed = False
for backend in ("io_uring", "libuv"):
    log, version = asyncio.run(asyncio.wait_for(look(backend, f"{sys.argv[1]}/{backend}.log"), 20))
    print(f"{backend}: log: read() {log[0]!r}, read() {log[1]!r}, read(100) {log[2]!r}")
    print(f"{backend}: /proc/version: read() {version[0]!r}, read(13) {version[1]!r}")
    failed |= log != ["one\n", "", "two\nthree\n"] or version != ["", "Linux version"]
sys.exit(failed)
PY
PYTHONPATH="$tmp/lib" timeout 60 python3 "$tmp/check.py" "$tmp"
