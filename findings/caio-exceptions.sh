#!/bin/bash
# Expected: an operation that fails raises OSError with its errno, as the library reference of Python
# lays down for errors of the system, and it does so whichever backend caio has chosen at import.
# Seen: four backends of one package answer the same failed read of a directory with three classes. Only the pure Python
# backend raises OSError (IsADirectoryError). io_uring, the default, and the C threads raise SystemError, without errno;
# Linux AIO raises ValueError. So `except OSError` works or not by what the kernel permits on that machine: the package
# falls back from io_uring to Linux AIO in silence where io_uring is refused.
# Versions: caio 0.12.10 (PyPI). Needs a kernel that serves io_uring and Linux AIO. Seen 2026-11-29.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --target "$tmp/lib" \
    caio==0.12.10

cat > "$tmp/check.py" <<'PY'
import asyncio, importlib, os, sys

EXPECTED = {
    "linux_uring": (SystemError, None),
    "linux_aio": (ValueError, None),
    "thread_aio": (SystemError, None),
    "python_aio": (IsADirectoryError, 21),
}


async def read_directory(backend):
    module = importlib.import_module(f"caio.{backend}_asyncio")
    directory = os.open("/", os.O_RDONLY)
    try:
        async with module.AsyncioContext() as context:
            await asyncio.wait_for(context.read(16, directory, 0), 10)
    except Exception as error:
        return error
    finally:
        os.close(directory)


import caio

print("default backend:", caio.preferred.__name__)
failed = caio.preferred.__name__ != "caio.linux_uring"
for backend, expected in EXPECTED.items():
    error = asyncio.run(read_directory(backend))
    seen = type(error), getattr(error, "errno", None)
    print(f"{backend}: {type(error).__name__}, errno {seen[1]}, OSError: {isinstance(error, OSError)}")
    failed |= seen != expected
sys.exit(failed)
PY
PYTHONPATH="$tmp/lib" timeout 60 python3 "$tmp/check.py"
