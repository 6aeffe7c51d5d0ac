#!/usr/bin/env python3
"""Checks that following the advice of `anyring trace` brings the gain that it predicts. The programs are the pairs of
tests/e2e/clients/gains.c and of findings.py. The first of each pair is traced on both engines. Then both run in turns,
untraced.

usage: scripts/gains.py BIN [--folder DIR] [--turns N] [--only FINDING]... [--backend kernel|user]...
(BIN: the folder with anyring)

The script needs a C compiler and liburing, and for the pairs of findings.py fio and qemu-img. The kernel's engine needs
root, and tracefs, which is mounted in a mount namespace of its own. Prints the predicted share and the measured one, of
elapsed or CPU time as predicted: the median of the turns, with their quartiles. The exit status is 1 if a pair differs
by more than a factor of 1.5. It is also 1 if trace reports nothing, although nearly all turns gained CPU time and took no
longer.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import findings

CLIENT = Path(__file__).resolve().parent.parent / "tests/e2e/clients/gains.c"
PAIRS = [
    ("depth", "depth-32", "one_in_flight"),
    ("fsync", "fsync-8", "sync_each"),
    ("poll", "poll-multishot", "poll_again"),
    ("timeout", "timeout-multishot", "timeout_again"),
]


def took(anyring, backend, command):
    """Seconds, and of CPU time. What `anyring run` itself takes does not count."""
    environment = dict(os.environ)
    if backend == "user":
        environment |= {"LD_PRELOAD": str(Path(anyring).with_name("libanyring.so")), "ANYRING_BACKEND": "user"}
    began = time.monotonic()
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)}: status {status}")
    return {"elapsed": time.monotonic() - began, "cpu": used.ru_utime + used.ru_stime}


def pairs(folder, client, file, others):
    """Name, the program before and after its advice is followed, the finding."""
    for before, after, name in PAIRS:
        yield before, [client, before, file], [client, after, file], name
    for name, finding, before, after, *_ in findings.programs(folder, others):
        # The other script has the data in the page cache, so that no read needs a worker. The advice is O_DIRECT.
        yield name, before, [*before, "--direct=1"] if finding == "reads_punted" else after, finding


def turn(anyring, backend, folder, before, after):
    """What both programs took, one right after the other."""
    both = []
    for command in (before, after):
        for image in ("writes", "image"):
            findings.make_image(f"{folder}/{image}")
        both.append(took(anyring, backend, command))
    return both


def compile_client(source, binary):
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-o", binary, source, "-luring"], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path)
    parser.add_argument("--folder", default="/var/tmp", help="where the file is: on a disk")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", action="append", help="a finding")
    parser.add_argument("--backend", action="append", choices=["kernel", "user"])
    arguments = parser.parse_args()
    anyring = str(arguments.bin.resolve() / "anyring")
    backends = arguments.backend or (["kernel", "user"] if os.geteuid() == 0 else ["user"])
    wrong = 0
    print("| program | finding | engine | of | predicted | measured |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="anyring-gains-") as folder:
        client, others, file = f"{folder}/gains", f"{folder}/findings", f"{folder}/file"
        compile_client(CLIENT, client)
        compile_client(findings.CLIENT, others)
        with open(file, "wb") as data:
            for _ in range(256):
                data.write(os.urandom(1 << 20))
            os.fsync(data.fileno())
        for program, before, after, name in pairs(folder, client, file, others):
            for backend in backends if name in (arguments.only or [name]) else []:
                report = findings.trace(anyring, backend, before, f"{folder}/report", may_lose=True)
                found = [it for it in report["findings"] if it["name"] == name]
                turns = [turn(anyring, backend, folder, before, after) for _ in range(arguments.turns)]
                gain = (found[0]["gain"] if found else None) or {"percent": 0.0, "of": "cpu"}
                shares = [100 * (1 - new[gain["of"]] / old[gain["of"]]) for old, new in turns]
                low, measured, high = statistics.quantiles(shares, n=4)
                predicted = gain["percent"]
                # A finding that is left out saves less than 3 %, or not much more, or costs time.
                faster = statistics.median(1 - new["elapsed"] / old["elapsed"] for old, new in turns)
                holds = predicted <= 1.5 * measured and measured <= 1.5 * predicted
                if not found:
                    holds = low < 4.5 or faster < -0.03
                wrong += not holds
                first = "" if not found or report["findings"][0]["name"] == name else ", not the first"
                print(f"| {program} | `{name}` | {backend} | {gain['of']} | "
                      f"{f'{predicted:.0f}%' if found else 'none'}{first} | "
                      f"{measured:.0f}% ({low:.0f} to {high:.0f}%){'' if holds else ' WRONG'} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
