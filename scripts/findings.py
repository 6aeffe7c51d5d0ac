#!/usr/bin/env python3
"""Checks that the findings of `anyring trace` are true. Eleven programs are traced on both engines, each as it is and once
more as the finding advises. The counts that are compared do not depend on the speed of the machine.

usage: scripts/findings.py BIN [--folder DIR] [--backend kernel|user]...      (BIN: the folder with anyring)

The script needs fio, qemu-img, a C compiler and liburing. The kernel's engine needs root, and tracefs, which is mounted
in a mount namespace of its own. The exit status is 1 if a finding is missing, or is still there once its advice is
followed. It is also 1 if the finding's count does not fall to a tenth of what it was (a quarter, for calls). Findings
that save less than 3 % are left out, and must not be there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "tests/e2e/clients/findings.c"

# Findings that are reported for the kernel's rings only.
SAVES_NOTHING_ON_OURS = ["attempts_in_vain", "inline_blocks", "unregistered_descriptor", "workers_pile_up"]
# Programs whose findings save less than 3 %, or nothing. trace leaves these findings out.
SAVES_TOO_LITTLE = ["fio, one file", "qemu-img bench -w"]
# Programs whose findings save about 3 %, or only if a processor is idle. What was measured decides whether trace reports
# them.
SAVES_THREE_PERCENT = ["fio, 256 in flight", "fio, force_async", "fio, reads of 4 MiB", "findings.c recv"]


def kinds(report, *opcodes):
    return [kind for ring in report["rings"] for kind in ring["kinds"] if kind["opcode"] in opcodes]


def by_worker(*opcodes):
    return lambda report: sum(kind["worker"] for kind in kinds(report, *opcodes))


def of_rings(field):
    return lambda report: sum(ring[field] or 0 for ring in report["rings"])


def looked_up(report):
    return sum(lookup["count"] for ring in report["rings"] for lookup in ring["lookups"])


def inline_reads(report):
    return sum(kind["inline"] for kind in kinds(report, "READ"))


def most_with_workers(report):
    return max(ring["most_with_workers"] for ring in report["rings"])


def polled(report):
    return sum(kind["poll"] for kind in kinds(report, "RECV"))


def programs(folder, client):
    """Name, finding, the program, the same as the finding advises, what is counted, how, and what part may be left."""

    def fio(name, *options):
        return ["fio", f"--name={name}", "--ioengine=io_uring", f"--filename={folder}/{name}", "--size=16m", *options]

    def bench(*options):
        return ["qemu-img", "bench", "-f", "raw", "-i", "io_uring", "-c", "2048", "-s", "4096", *options, f"{folder}/image"]

    new = ["--rw=randwrite", "--bs=4k", "--iodepth=8", "--direct=1", "--unlink=1"]
    warm = ["--rw=randread", "--bs=4k", "--pre_read=1", "--invalidate=0", "--iodepth=16"]
    cold = ["--rw=randread", "--bs=4k", "--iodepth=8"]
    async_ = ["--rw=read", "--bs=64k", "--size=64m", "--pre_read=1", "--invalidate=0", "--iodepth=4"]
    large = ["--rw=read", "--bs=4m", "--size=64m", "--loops=10", "--pre_read=1", "--invalidate=0", "--iodepth=2"]
    many = ["--rw=randwrite", "--bs=4k", "--iodepth_batch_complete_min=1"]
    return [
        ("fio, new file, O_DIRECT", "writes_punted", fio("new", *new, "--fallocate=none"),
         fio("new", *new, "--fallocate=native"), "writes by workers", by_worker("WRITE"), 0.1),
        ("fio, cold random reads", "reads_punted", fio("cold", *cold),
         fio("cold", *cold, "--pre_read=1", "--invalidate=0"), "reads by workers", by_worker("READ"), 0.1),
        ("findings.c calls", "one_enter_each", [client, "calls"], [client, "calls-batch"], "enter calls", of_rings("enters"), 0.25),
        ("fio, one file", "unregistered_descriptor", fio("files", *warm),
         fio("files", *warm, "--registerfiles=1"), "descriptors looked up", looked_up, 0.1),
        ("fio, force_async", "async_always", fio("async", *async_, "--force_async=1"),
         fio("async", *async_), "reads by workers", by_worker("READ"), 0.1),
        ("fio, reads of 4 MiB", "inline_blocks", fio("large", *large),
         fio("large", *large, "--force_async=1"), "reads in the call", inline_reads, 0.1),
        ("fio, 256 in flight", "workers_pile_up", fio("many", *many, "--iodepth=256", "--iodepth_batch=256"),
         fio("many", *many, "--iodepth=16"), "most with workers", most_with_workers, 0.1),
        ("qemu-img bench -w", "writes_punted", bench("-w", "-d", "8", "-t", "writeback"),
         bench("-w", "-d", "8", "-t", "none"), "writes by workers", by_worker("WRITE", "WRITEV"), 0.1),
        ("findings.c recv", "attempts_in_vain", [client, "recv"], [client, "recv-multishot"], "RECVs that waited", polled, 0.1),
        ("findings.c drain", "drained", [client, "drain"], [client, "drain-link"], "reads by workers", by_worker("READ"), 0.1),
        ("findings.c cq", "cq_overflow", [client, "cq"], [client, "cq-large"], "overflows", of_rings("overflows"), 0.1),
    ]


def make_image(path):
    """A file of which nothing is in the page cache, so that O_DIRECT has nothing to evict there."""
    with open(path, "wb") as image:
        image.write(bytes(16 << 20))
        image.flush()
        os.fsync(image.fileno())
        os.posix_fadvise(image.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def trace(anyring, backend, command, report, may_lose=False):
    words = [anyring, "trace", "--backend", backend, "--json", "-o", report, "--", *command]
    if backend == "kernel":
        mount = '[ -d /sys/kernel/tracing/instances ] || mount -t tracefs tracefs /sys/kernel/tracing && exec "$@"'
        words = ["unshare", "--mount", "sh", "-c", mount, "sh", *words]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    result = json.loads(Path(report).read_text())
    if result["events_lost"] and not may_lose:
        sys.exit(f"{' '.join(command)}: events were lost")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path)
    parser.add_argument("--folder", default="/var/tmp", help="where the files are: on a disk")
    parser.add_argument("--backend", action="append", choices=["kernel", "user"])
    arguments = parser.parse_args()
    backends = arguments.backend or ["kernel", "user"]
    if not arguments.backend and os.geteuid() != 0:
        print("skipped: the kernel's engine: tracefs is for root only")
        backends = ["user"]
    anyring = str(arguments.bin.resolve() / "anyring")
    wrong = []
    print("| program | finding | counted | engine | before | followed |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="anyring-findings-") as folder:
        client = f"{folder}/findings"
        subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-o", client, CLIENT, "-luring"], check=True)
        for name, finding, program, followed, counted, count, part in programs(folder, client):
            for backend in backends:
                reports = []
                for it in (program, followed):
                    make_image(f"{folder}/writes")
                    make_image(f"{folder}/image")
                    reports.append(trace(anyring, backend, it, f"{folder}/report"))
                before, after = map(count, reports)
                told = [any(it["name"] == finding for it in report["findings"]) for report in reports]
                print(f"| {name} | `{finding}` | {counted} | {backend} | {before if told[0] else f'{before}, none'} | "
                      f"{f'{after}, still' if told[1] else after} |", flush=True)
                is_left_out = name in SAVES_TOO_LITTLE or (backend == "user" and finding in SAVES_NOTHING_ON_OURS)
                if is_left_out and told[0]:
                    wrong.append(f"{name}, {backend}: {finding} saves nothing, or too little to be told")
                # A program whose requests the kernel completes without a worker rightly has no finding.
                may_be_left_out = is_left_out or name in SAVES_THREE_PERCENT
                is_missing = not (told[0] or may_be_left_out) and before >= 100
                if told[1] or (before >= 100 and after > before * part) or is_missing:
                    wrong.append(f"{name}, {backend}: {finding}: {before} -> {after}, told {told}")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
