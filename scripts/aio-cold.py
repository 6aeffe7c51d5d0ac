#!/usr/bin/env python3
"""Measures io_submit for buffered random reads of a file that is not in the page cache: the kernel's and anyring's.

usage: scripts/aio-cold.py BIN [--turns N] [--folder DIR]      (BIN: the folder with anyring and libanyring.so)

The kernel's io_submit returns when the device has answered. anyring's returns when a worker has been told. fio reads
each block of a file once, in random order, after it has dropped the file from the page cache. Its submission latency is
the time inside io_submit. The two engines take turns, and the medians of all turns are compared.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

FIO = ["fio", "--name=cold", "--ioengine=libaio", "--rw=randread", "--bs=4k", "--size=64m", "--direct=0",
       "--invalidate=1", "--slat_percentiles=1", "--clat_percentiles=0", "--output-format=json"]


def submission_us(server, depth, folder):
    """The median and the 99th percentile of one job."""
    command = server + FIO + [f"--iodepth={depth}", f"--directory={folder}"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    percentiles = json.loads(output)["jobs"][0]["read"]["slat_ns"]["percentile"]
    return [percentiles[name] / 1000 for name in ("50.000000", "99.000000")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", default="/var/tmp", help="where the file is: on a disk")
    arguments = parser.parse_args()
    anyring = str(arguments.bin.resolve() / "anyring")
    servers = {"kernel": [], "anyring": [anyring, "deny", "--aio", "--", anyring, "run", "--"]}
    print(f"{'in flight':>9}  {'server':8} {'median us':>10} {'99th us':>10}")
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="anyring-cold-") as folder:
        for depth in (1, 4, 32):
            taken = {name: [] for name in servers}
            for _ in range(arguments.turns):
                for name, server in servers.items():
                    taken[name].append(submission_us(server, depth, folder))
            medians = {}
            for name, turns in taken.items():
                medians[name], last = (statistics.median(column) for column in zip(*turns))
                print(f"{depth:>9}  {name:8} {medians[name]:>10.1f} {last:>10.1f}")
            print(f"{depth:>9}  {'sooner':8} {medians['kernel'] / medians['anyring']:>9.1f}x")


if __name__ == "__main__":
    main()
