#!/usr/bin/env python3
"""Compares PostgreSQL's io_method settings: worker, sync, and io_uring by the kernel and by anyring where it is denied.

usage: scripts/postgres-methods.py BIN [--major 18|19] [--rounds N] [--rows N] [--seconds N] [--folder DIR]

BIN is the folder with anyring. The programs are those of scripts/postgres.sh. The methods take turns: in each round a
server of each method starts on the same data. It makes three sequential scans whose pages were dropped from the page
cache, and then serves `pgbench -S` to four clients. Prints the medians, the ratio to `worker` as the median of the
rounds' ratios, and the lowest and highest of these ratios. Run it on an idle machine. The server runs as `nobody` if
the caller is root. The exit status is 1 if a method fails.
"""

import argparse
import os
import pwd
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCANS = 3
CLIENTS = 4
DENIED = "io_uring, anyring where it is denied"
METHODS = {"worker": "worker", "sync": "sync", "io_uring, the kernel's": "io_uring", DENIED: "io_uring"}


def as_nobody(folder):
    """Gives the folder to nobody. Returns what makes a child process nobody, since the server refuses to be root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


class Cluster:
    """The data of one cluster, and its programs."""

    def __init__(self, folder, bin_folder, anyring):
        self.folder, self.bin, self.anyring = folder, bin_folder, anyring
        self.identity = as_nobody(folder)
        self.environment = os.environ | {"PGHOST": folder, "PGUSER": "tester", "PGDATABASE": "postgres", "HOME": folder}

    def run(self, name, *words, check=True):
        command = [f"{self.bin}/{name}", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, check=check, text=True, capture_output=True, **self.identity
        )

    def psql(self, query, check=True):
        return self.run("psql", "--no-psqlrc", "-qtA", "-c", query, check=check).stdout.strip()

    def make(self, rows):
        self.run("initdb", "-D", "data", "-U", "tester", "--no-sync", "--no-locale", "-E", "UTF8", "--set=shared_buffers=64MB")
        with Server(self, "worker"):
            filler = "md5(id::text) || md5((id + 1)::text)"
            self.psql(f"create table scanned as select id, {filler} as filler from generate_series(1, {rows}) id")
            self.psql("vacuum (freeze, analyze) scanned")
            self.run("pgbench", "-i", "-q", "-s", "20")
            self.psql("checkpoint")

    def drop_cached(self):
        """Drops the data's clean pages from the page cache."""
        os.sync()
        for file in Path(self.folder, "data/base").rglob("*"):
            if file.is_file():
                with open(file, "rb") as opened:
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Server:
    """A server that runs while the context is open."""

    def __init__(self, cluster, method):
        self.cluster, self.method = cluster, method

    def __enter__(self):
        cluster = self.cluster
        words = [f"{cluster.bin}/postgres", "-D", "data", "-k", cluster.folder, "-c", "listen_addresses="]
        words += ["-c", "max_connections=20", "-c", f"io_method={METHODS[self.method]}", "-c", "autovacuum=off"]
        if self.method == DENIED:
            words = [cluster.anyring, "deny", "--", cluster.anyring, "run", "--", *words]
        self.log = open(f"{cluster.folder}/log", "w+")
        self.process = subprocess.Popen(
            words, cwd=cluster.folder, env=cluster.environment, stdout=self.log, stderr=self.log, **cluster.identity
        )
        for _ in range(300):
            if self.process.poll() is not None:
                sys.exit(f"the server with {self.method} does not start: {self.said()}")
            if cluster.psql("select 1", check=False) == "1":
                return self
            time.sleep(0.1)
        sys.exit(f"the server with {self.method} does not answer: {self.said()}")

    def __exit__(self, *_):
        self.process.send_signal(2)  # a fast shutdown
        self.process.wait(timeout=60)
        self.log.close()

    def said(self):
        self.log.seek(0)
        return self.log.read().strip()[-500:]

    def maps_anyring(self):
        return "libanyring" in Path(f"/proc/{self.process.pid}/maps").read_text()


def measure(cluster, method, rows, seconds):
    """The fastest of the cold scans in ms, and the transactions a second."""
    with Server(cluster, method) as server:
        if server.maps_anyring() != (method == DENIED):
            sys.exit(f"{method}: served by the wrong side")
        scans = []
        for _ in range(SCANS):
            cluster.drop_cached()
            query = "set max_parallel_workers_per_gather = 0; explain (analyze, timing off) select count(filler) from scanned"
            plan = cluster.psql(query)
            if f"rows={rows}" not in plan.replace(".00", ""):
                sys.exit(f"{method}: a wrong count: {plan}")
            scans.append(float(re.search(r"Execution Time: ([\d.]+) ms", plan)[1]))
        mix = cluster.run("pgbench", "-S", "-n", "-c", str(CLIENTS), "-j", "1", "-T", str(seconds)).stdout
        return {"scan": min(scans), "mix": float(re.search(r"tps = ([\d.]+)", mix)[1])}


def table(results):
    print("| `io_method` | cold scan, ms | to `worker` | `pgbench -S`, per second | to `worker` |\n|---|---|---|---|---|")
    for method, rounds in results.items():
        cells = []
        for figure in "scan", "mix":
            ratios = [mine[figure] / other[figure] for mine, other in zip(rounds, results["worker"])]
            median = statistics.median(mine[figure] for mine in rounds)
            cells.append(f"{median:,.0f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"| {method} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path)
    parser.add_argument("--major", default="18", choices=["18", "19"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--folder", default="/var/tmp", help="where the data is: on a disk")
    arguments = parser.parse_args()
    scripts, environment = ROOT / "scripts/postgres.sh", os.environ | {"POSTGRES_MAJOR": arguments.major}
    subprocess.run([scripts, "fetch"], check=True, env=environment)
    folder = tempfile.mkdtemp(dir=arguments.folder, prefix="anyring-postgres-")
    try:
        os.chmod(folder, 0o755)
        programs, data = f"{folder}/programs", f"{folder}/data"
        os.mkdir(programs)
        os.mkdir(data)
        placed = subprocess.run([scripts, "place", programs], text=True, capture_output=True, env=environment)
        if placed.returncode == 77:
            print(f"skipped: {placed.stdout.strip()}\n0 passed, 0 failed, 1 skipped")
            return
        placed.check_returncode()
        # A copy, since the server's user may not reach the build's folder.
        for name in "anyring", "libanyring.so":
            shutil.copy2(arguments.bin / name, programs)
        cluster = Cluster(data, placed.stdout.strip(), f"{programs}/anyring")
        cluster.make(arguments.rows)
        results = {method: [] for method in METHODS}
        for turn in range(arguments.rounds):
            order = list(METHODS)[turn % len(METHODS) :] + list(METHODS)[: turn % len(METHODS)]
            for method in order:
                results[method].append(measure(cluster, method, arguments.rows, arguments.seconds))
        version = cluster.run("postgres", "--version").stdout.strip()
        print(f"{version}, {arguments.rounds} rounds, {arguments.rows:,} rows, {os.cpu_count()} processors")
        table(results)
        print(f"{len(METHODS)} passed, 0 failed, 0 skipped")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
