#!/bin/bash
# Expected: psutil's io_counters() counts what a process reads and writes. Its read_chars and write_chars are rchar and
# wchar of /proc/PID/io: the bytes of read(2), write(2) and calls like them (proc_pid_io(5)).
# Seen: neither Linux AIO nor io_uring is counted. A program that reads 8 MiB and writes 4 MiB shows 12 MiB with
# blocking calls in threads, and less than 64 KiB with either interface; the count of calls does not show them either.
# A monitor that watches these numbers sees an idle process when its program changes to io_uring.
# Versions: psutil 7.2.2, caio 0.12.10 (PyPI). The kernel fills the numbers (/proc/PID/io): seen on Linux 6.18; it needs
# CONFIG_TASK_XACCT and CONFIG_TASK_IO_ACCOUNTING, io_uring and Linux AIO. Seen 2026-11-29.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --target "$tmp/lib" \
    psutil==7.2.2 caio==0.12.10

cat > "$tmp/check.py" <<'PY'
import asyncio, importlib, os, sys
import psutil

MIB = 1 << 20
SLACK = 64 << 10  # what the interpreter itself reads and writes meanwhile


async def counted(backend, path, **arguments):
    module = importlib.import_module(f"caio.{backend}_asyncio")
    process = psutil.Process()
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.truncate(file, 8 * MIB)
    async with module.AsyncioContext(**arguments) as context:
        before = process.io_counters()
        for index in range(8):
            assert len(await context.read(MIB, file, index * MIB)) == MIB
        for index in range(4):
            assert await context.write(b"x" * MIB, file, index * MIB) == MIB
        after = process.io_counters()
    os.close(file)
    return after.read_chars - before.read_chars, after.write_chars - before.write_chars


failed = False
for backend, arguments in (("thread_aio", {}), ("linux_aio", {}), ("linux_uring", {"sqpoll": False})):
    read, written = asyncio.run(counted(backend, os.path.join(sys.argv[1], backend), **arguments))
    print(f"{backend}: 8388608 bytes read, counted {read}; 4194304 written, counted {written}")
    if backend == "thread_aio":
        failed |= not (8 * MIB <= read < 8 * MIB + SLACK and 4 * MIB <= written < 4 * MIB + SLACK)
    else:
        failed |= read >= SLACK or written >= SLACK
sys.exit(failed)
PY
PYTHONPATH="$tmp/lib" timeout 60 python3 "$tmp/check.py" "$tmp"
