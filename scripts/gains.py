#!/usr/bin/env python3
"""Checks that following the advice of `anyring trace` brings the gain that it predicts. The programs are the pairs of
tests/e2e/clients/gains.c. The first of each pair is traced on both engines. Then both run in turns, untraced.

usage: scripts/gains.py BIN [--folder DIR] [--turns N]      (BIN: the folder with anyring)

The script needs a C compiler and liburing. The kernel's engine needs root, and tracefs, which is mounted in a mount
namespace of its own. Prints the predicted share and the measured one, of elapsed or CPU time as predicted, as medians.
The exit status is 1 if they differ by more than a factor of 1.5.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "tests/e2e/clients/gains.c"
PAIRS = [
    ("depth", "depth-32", "one_in_flight"),
    ("fsync", "fsync-8", "sync_each"),
    ("poll", "poll-multishot", "poll_again"),
    ("timeout", "timeout-multishot", "timeout_again"),
]


def trace(anyring, backend, command, report):
    words = [anyring, "trace", "--backend", backend, "--json", "-o", report, "--", *command]
    if backend == "kernel":
        mount = 'mount -t tracefs tracefs /sys/kernel/tracing && exec "$@"'
        words = ["unshare", "--mount", "sh", "-c", mount, "sh", *words]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return json.loads(Path(report).read_text())


def took(anyring, backend, command):
    """Seconds, and of CPU time."""
    began = time.monotonic()
    child = subprocess.Popen([anyring, "run", "--backend", backend, "--", *command], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)}: status {status}")
    return {"elapsed": time.monotonic() - began, "cpu": used.ru_utime + used.ru_stime}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path)
    parser.add_argument("--folder", default="/var/tmp", help="where the file is: on a disk")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    anyring = str(arguments.bin.resolve() / "anyring")
    wrong = 0
    print("| program | finding | engine | of | told | measured |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="anyring-gains-") as folder:
        client, file = f"{folder}/gains", f"{folder}/file"
        subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-o", client, CLIENT, "-luring"], check=True)
        with open(file, "wb") as data:
            for _ in range(256):
                data.write(os.urandom(1 << 20))
            os.fsync(data.fileno())
        for before, after, name in PAIRS:
            for backend in ["kernel", "user"] if os.geteuid() == 0 else ["user"]:
                report = trace(anyring, backend, [client, before, file], f"{folder}/report")
                found = [it for it in report["findings"] if it["name"] == name]
                turns = [[took(anyring, backend, [client, which, file]) for which in (before, after)]
                         for _ in range(arguments.turns)]
                gain = (found[0]["gain"] if found else None) or {"percent": 0.0, "of": "cpu"}
                old, new = [statistics.median(turn[at][gain["of"]] for turn in turns) for at in (0, 1)]
                measured = 100 * (old - new) / old
                told = gain["percent"]
                # What is left out is less than 3 %, or not much more.
                holds = told <= 1.5 * measured and measured <= 1.5 * told if found else measured < 4.5
                wrong += not holds
                first = "" if not found or report["findings"][0]["name"] == name else ", not the first"
                print(f"| {before} | `{name}` | {backend} | {gain['of']} | {f'{told:.0f}%' if found else 'none'}{first} | "
                      f"{measured:.0f}%{'' if holds else ' WRONG'} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
