#!/bin/bash
# Expected: AIOBlock.eventfd is the EventFD that the block was given, or None. Its documentation calls it the eventfd
# file to use for event notifications, and the block keeps its buffers alive in the same way.
# Seen: it is a function of C. The setter stores the name `eventfd`, which is the module's wrapper of eventfd(2), in
# place of its value. So block.eventfd is true for a block without one, and cannot be given to another block. The
# block does not keep its EventFD alive either: one that only the block was given is closed at once, and submit()
# raises EBADF.
# Versions: libaio 0.9.5 (PyPI), libaio1 0.3.113-4 (Debian 12). Needs a kernel with Linux AIO. Seen 2026-11-30.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
(cd "$tmp" && apt-get download -q=2 -o APT::Sandbox::User=root libaio1=0.3.113-4 && dpkg-deb -x ./*.deb root)
python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --target "$tmp/lib" \
    libaio==0.9.5
echo 0123456789abcdef > "$tmp/file"

cat > "$tmp/check.py" <<'PY'
import sys
import libaio


def answer(function):
    try:
        return function()
    except Exception as error:
        return type(error).__name__


def read(file, eventfd):
    """Reads 16 bytes, and returns the event's result, the count of the eventfd, and what the block has for it."""
    block = libaio.AIOBlock(libaio.AIOBLOCK_MODE_READ, file, [bytearray(16)], eventfd=eventfd)
    with libaio.AIOContext(1) as context:
        context.submit([block])
        [(_, result, _)] = context.getEvents()
    return result, eventfd and eventfd.read(), block


def lone(file):
    """Submits a block whose EventFD nothing else refers to."""
    block = libaio.AIOBlock(libaio.AIOBLOCK_MODE_READ, file, [bytearray(16)], eventfd=libaio.EventFD())
    with libaio.AIOContext(1) as context:
        try:
            context.submit([block])
            context.getEvents()
        except OSError as error:
            return error.errno
    return 0


with open(sys.argv[1], "rb", 0) as file, libaio.EventFD() as notifier:
    result, count, block = read(file, notifier)
    print(f"read: {result}; eventfd counted {count}; block.eventfd is it: {block.eventfd is notifier}")
    copy = answer(lambda: libaio.AIOBlock(libaio.AIOBLOCK_MODE_READ, file, eventfd=block.eventfd))
    print(f"block.eventfd: {block.eventfd!r}; given to another block: {copy}")
    _, _, without = read(file, None)
    print(f"block.eventfd of a block without one: {without.eventfd!r}")
    errno = lone(file)
    print(f"submit() of a block that alone has its EventFD: errno {errno}")
failed = (result, count) != (16, 1) or block.eventfd is notifier or copy != "TypeError"
failed |= not callable(block.eventfd) or without.eventfd is None or errno != 9
sys.exit(failed)
PY
LD_LIBRARY_PATH=$tmp/root/lib/x86_64-linux-gnu:$tmp/root/usr/lib/x86_64-linux-gnu PYTHONPATH="$tmp/lib" \
    timeout 60 python3 "$tmp/check.py" "$tmp/file"
