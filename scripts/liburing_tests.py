#!/usr/bin/env python3
"""Runs liburing's own test programs on the kernel's io_uring and on anyring's. scripts/liburing-tests.sh builds them.

Each program runs up to four times, always in an empty folder. The first run is on the kernel's io_uring (linked with
the shared library). If that passes, the others run under `anyring deny -- anyring run --backend user`. They are linked
with liburing.so.2 (whose functions anyring replaces), with liburing.a (whose `syscall` instructions are trapped), and
with liburing.a and libc.a (as a guest). Programs run side by side, but the runs of one program do not. The ports and
the names in /tmp that they use differ from program to program.

On anyring a run passes if it exits with 0 as it did on the kernel, and says that it skips something only where it said
so on the kernel. 77, the exit status for "cannot be tested here", is a failure. A program that fails, skips itself or
takes too long on the kernel is a skip, with that reason.

The file of exceptions lists what fails on anyring: `NAME reason` or `NAME@shared reason`, one a line. A listed run that
passes is an error, except where the name begins with `?`: that program fails only now and then. At most 5 in a hundred
of the programs that pass on the kernel may be listed. A run that is not listed, fails, and then passes five times alone
is flaky and counts as skipped. Many of these programs set threads against a clock.
"""

import argparse
import concurrent.futures
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

WAYS = ("shared", "static", "guest")
NATIVE = "native"
SKIP_STATUS = 77
LIMIT_NATIVE_S = 30
LIMIT_OURS_S = 120
# The limit of listed exceptions, which may hang.
LIMIT_LISTED_S = 15
MOST_EXCEPTIONS = 0.05
# A failed program counts as flaky if it then passes this many times, alone.
TIMES_AGAIN = 5
MOST_FLAKY = 3  # further failures count
# The words that programs print when they skip something.
LEAVES_OUT = re.compile(r"skip|not supported|unsupported|doesn't support|not available", re.IGNORECASE)


@dataclass
class Run:
    """One run of one program. problem: None if it exited with 0."""

    problem: str | None
    output: str
    seconds: float

    def last_line(self):
        lines = self.output.strip().splitlines()
        return lines[-1][:160] if lines else "no output"

    def left_out(self):
        return {line.strip() for line in self.output.splitlines() if LEAVES_OUT.search(line)}


class Runner:
    def __init__(self, arguments, exceptions):
        self.exceptions, self.limit_ours_s = exceptions, arguments.limit_s
        self.tests = arguments.tests.resolve()
        self.anyring = str(arguments.bin.resolve() / "anyring")
        self.results = self.tests.parent / "results"
        self.scratch = self.tests.parent / "scratch"
        for folder in (self.results, self.scratch):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()

    def run(self, name, way):
        """way: native, shared, static or guest."""
        programs = self.tests / f"test-{WAYS[0] if way == NATIVE else way}"
        words = [str(programs / f"{name}.t")]
        if way != NATIVE:
            options = ["--guest"] if way == "guest" else []
            words = [self.anyring, "deny", "--", self.anyring, "run", "--backend", "user", *options, "--", *words]
        folder = self.scratch / f"{name}-{way}"
        folder.mkdir()
        # One test executes it from the current folder.
        (folder / "exec-target.t").symlink_to(programs / "exec-target.t")
        log = self.results / f"{name}.{way}"
        started = time.monotonic()
        with open(log, "wb") as output:
            process = subprocess.Popen(
                words, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            problem = judge(process, self.limit_s(name, way))
        seconds = time.monotonic() - started
        shutil.rmtree(folder, ignore_errors=True)
        return Run(problem, log.read_text(errors="replace"), seconds)

    def limit_s(self, name, way):
        if way == NATIVE:
            return LIMIT_NATIVE_S
        return LIMIT_LISTED_S if listed_as(name, way, self.exceptions) else self.limit_ours_s

    def passes_again(self, name, way, native):
        """Whether a program that failed on ours passes each time that it runs alone."""
        for _ in range(TIMES_AGAIN):
            run = self.run(name, way)
            if run.problem is not None or leaves_out_more(run, native):
                return False
        return True

    def on_ours(self, name, native):
        """One run for each way."""
        runs = {}
        for way in WAYS:
            runs[way] = self.run(name, way)
            if runs[way].problem is None:
                runs[way].problem = leaves_out_more(runs[way], native)
        return runs


def judge(process, limit_s):
    """Waits for the program and ends what it leaves behind."""
    try:
        status = process.wait(limit_s)
        problem = None
        if status == SKIP_STATUS:
            problem = "skips itself"
        elif status < 0:
            problem = f"killed by {signal.Signals(-status).name}"
        elif status:
            problem = f"status {status}"
    except subprocess.TimeoutExpired:
        problem = f"not done after {limit_s} s"
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    return problem


def leaves_out_more(ours, native):
    more = ours.left_out() - native.left_out()
    return f"leaves out what it does natively: {min(more)[:100]}" if more else None


def exceptions_from(path):
    """{NAME or NAME@way: (reason, whether it may pass)}"""
    listed = {}
    for line in path.read_text().splitlines() if path else []:
        if not line.strip() or line.startswith("#"):
            continue
        name, _, reason = line.strip().partition(" ")
        if not reason.strip():
            sys.exit(f"{path}: an exception without a reason: {line}")
        listed[name.removeprefix("?")] = (reason.strip(), name.startswith("?"))
    return listed


def listed_as(name, way, exceptions):
    """The exception that covers a run, if one does."""
    return next((key for key in (f"{name}@{way}", name) if key in exceptions), None)


def linked_as_said(program, way):
    """That the ways differ: one of the programs needs liburing.so.2, one no library at all."""
    dynamic = subprocess.run(["readelf", "-d", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    return ("[liburing.so.2]" in dynamic, "(NEEDED)" in dynamic) == (way == "shared", way != "guest")


def programs_of(tests):
    """The names of all programs that the Makefile knows."""
    words = ["make", "-s", "-C", tests / "test-shared", "--eval", "names: ; @echo $(test_targets)", "names"]
    listed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return sorted({name.removesuffix(".t") for name in listed})


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    flaky: int = 0

    def fail(self, what, why):
        self.failed += 1
        print(f"FAILED {what}: {why}")

    def skip(self, what, why):
        self.skipped += 1
        print(f"skip {what}: {why}")


def is_built(tests, name, tally):
    """Whether all programs are there and linked as they should be; counts a failure if not."""
    for way in WAYS:
        program = tests / f"test-{way}" / f"{name}.t"
        if not program.exists():
            tally.fail(f"{name}@{way}", "not built: see build.log")
            return False
        if not linked_as_said(program, way):
            tally.fail(f"{name}@{way}", "linked otherwise")
            return False
    return True


def count(name, runs, exceptions, passes_again, tally):
    """Counts the runs of one program on ours; passes_again(way) tells of one that failed whether it is flaky.

    Answers the exception that was met: {listed name: whether a run failed}.
    """
    met = {}
    for way, run in runs.items():
        what, listed = f"{name}@{way}", listed_as(name, way, exceptions)
        if listed:
            met[listed] = met.get(listed, False) or run.problem is not None
        if run.problem is None:
            tally.passed += 1
        elif listed:
            tally.skip(what, f"listed: {exceptions[listed][0]}")
        elif tally.flaky < MOST_FLAKY and passes_again(way):
            tally.flaky += 1
            tally.skipped += 1
            print(f"FLAKY  {what}: {run.problem}: {run.last_line()}; then it passed {TIMES_AGAIN} times alone")
        else:
            tally.fail(what, f"{run.problem}: {run.last_line()}")
    return met


def check_exceptions(exceptions, met, names, tally):
    """That each exception is one of a program's, and failed if that passed natively."""
    for listed, (_, may_pass) in exceptions.items():
        if listed.partition("@")[0] not in names:
            tally.fail(listed, "is listed as an exception, but there is no such program")
        elif not met.get(listed, True) and not may_pass:
            tally.fail(listed, "is listed as an exception, but passed")


def check_share(exceptions, programs, tally):
    """That the list is short."""
    names = {listed.partition("@")[0] for listed in exceptions}
    if len(names) > MOST_EXCEPTIONS * programs:
        tally.fail("exceptions", f"{len(names)} of {programs} programs are listed: more than 5 in a hundred")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True, help="the folder with anyring and libanyring.so")
    parser.add_argument("--tests", type=Path, required=True, help="liburing's folder, with test-shared, test-static and test-guest")
    parser.add_argument("--exceptions", type=Path, help="what is known to fail on ours")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many programs at a time")
    parser.add_argument("--limit-s", type=int, default=LIMIT_OURS_S, help="seconds that a run on ours may take")
    parser.add_argument("--verbose", action="store_true", help="say how long each run took")
    parser.add_argument("names", nargs="*", help="run these programs only")
    arguments = parser.parse_args()

    exceptions = exceptions_from(arguments.exceptions)
    runner, tally = Runner(arguments, exceptions), Tally()
    words = [runner.anyring, "run", "--backend", "kernel", "--", "true"]
    probe = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if probe.returncode:
        tally.skip("all", f"there is nothing to compare with: {probe.stdout.strip()}")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    if os.geteuid() != 0:
        print("not root: programs that need it (personality, parts of io_uring_register, read-write) skip themselves")

    names = arguments.names or programs_of(runner.tests)
    names = [name for name in names if is_built(runner.tests, name, tally)]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        natively = dict(zip(names, pool.map(lambda name: runner.run(name, NATIVE), names)))
        for name in [name for name in names if natively[name].problem is not None]:
            run = natively.pop(name)
            tally.skip(name, f"natively here: {run.problem}: {run.last_line()}")
        # The longest first, so that no single program runs on when all others have ended.
        order = sorted(natively, key=lambda name: -natively[name].seconds)
        ours = {name: pool.submit(runner.on_ours, name, natively[name]) for name in order}
        ours = {name: future.result() for name, future in ours.items()}
    met = {}
    for name, runs in sorted(ours.items()):
        passes_again = functools.partial(runner.passes_again, name, native=natively[name])
        met |= count(name, runs, exceptions, passes_again, tally)
        if arguments.verbose:
            seconds = [f"{way} {run.seconds:.1f} s" for way, run in ({NATIVE: natively[name]} | runs).items()]
            print(f"{name}: {', '.join(seconds)}")
        sys.stdout.flush()
    if arguments.names:
        exceptions = {key: value for key, value in exceptions.items() if key in met}
    else:
        check_share(exceptions, len(natively), tally)
    check_exceptions(exceptions, met, names, tally)
    print(f"what each run printed is in {runner.results}")
    print(f"{tally.passed} passed, {tally.failed} failed, {tally.skipped} skipped")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
