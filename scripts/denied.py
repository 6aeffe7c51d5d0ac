#!/usr/bin/env python3
"""Refuses each system call that anyring makes (packaging/seccomp/anyring.json), one at a time, in addition to
io_uring's own. Each is refused by EPERM, by ENOSYS and by a filter that kills. Under each refusal fio, a dynamic C
program and a static one run. `anyring run` must serve each program, or refuse it in one line before it starts.

usage: scripts/denied.py BIN [--sample | --all FILE | CALL...]      (BIN: the folder with anyring and libanyring.so)

--sample tries each call once, with each program by turns. --all writes every row, so that two files can be compared.
With CALLs it shows every result for these calls. scripts/denied.txt lists the rows that are neither served nor refused,
each with the reason. The script fails if such a row is not listed, or if a listed row works. If a call of MUST_SERVE is
refused, every program has to be served. The conformance cases that use what the call is for have to pass, too, through
liburing (BIN/anyring-conformance). Without CALLs, every program also has to be served below each profile of `anyring
deny`. Some programs do not run under the filter even where io_uring is permitted. They say
nothing about anyring, and are left out. The script needs fio and a C compiler with glibc's archives.
"""

import collections
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "crates/cli/tests/c"
KNOWN = ROOT / "scripts/denied.txt"
ACTIONS = {"EPERM": 0x00050001, "ENOSYS": 0x00050026, "kill": 0x80000000}
PROFILES = ["docker", "rhel8", "gvisor", "minimal", "agent", "agent-strict", "kill"]
IO_URING = ["io_uring_enter", "io_uring_register", "io_uring_setup"]
PATIENCE_S = 20
# Calls that the engine can do without: the filter's actions for which that holds, and the cases that show it.
MUST_SERVE = {
    "memfd_create": (list(ACTIONS), ["buffer_rings::", "region"]),
    "sendto": (["EPERM", "ENOSYS"], ["delivery::edge", "delivery::level"]),
    "socketpair": (["EPERM", "ENOSYS"], ["epoll_wait::", "msg_ring", "sqpoll::"]),
}


def numbers():
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read_text()
    return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header)}


def known():
    """The rows of the list: call, action and program."""
    lines = (line.split("#")[0].split() for line in KNOWN.read_text().splitlines())
    return [tuple(line) for line in lines if line]


def compiled(folder, name, source, *flags):
    subprocess.run(["cc", "-O1", "-o", folder / name, SOURCES / source, *flags], check=True)
    return folder / name


def run(words, folder):
    """How it ended, and what it printed. What it leaves behind, in its process group, is ended with it."""
    with tempfile.TemporaryDirectory(dir=folder) as home, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(words, cwd=home, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        end = os.pidfd_open(process.pid)
        ended, _, _ = select.select([end], [], [], PATIENCE_S)
        os.close(end)
        # Until the leader has been waited for, no other group can have this number.
        os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        out.seek(0), err.seek(0)
        return status if ended else "hangs", out.read().decode(errors="replace"), err.read().decode(errors="replace")


def is_well(result):
    status, out, err = result
    return status == 0 and err == "" and (out == "served\n" or " err= 0: " in out)


def is_refused(result):
    """125: nobody can be served; 126: this program cannot."""
    status, out, err = result
    return status in (125, 126) and out == "" and err.startswith("anyring: ") and err.count("\n") == 1 and err.endswith("\n")


def sample(cases):
    """Each call once: over the calls, each action with each program by turns."""
    calls = list(dict.fromkeys(case[0] for case in cases))
    nine = len(cases) // len(calls)
    return [cases[index * nine + (index * 4 + index // nine) % nine] for index in range(len(calls))]


def main():
    binaries, options = Path(sys.argv[1]).resolve(), sys.argv[2:]
    number = numbers()
    all_calls = json.loads((ROOT / "packaging/seccomp/anyring.json").read_text())["names"]
    chosen = [] if options[:1] in ([], ["--sample"], ["--all"]) else options
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        refusing = compiled(folder, "refusing", "refusing.c", "-static")
        programs = {
            # Without its progress line, for which a slow run calls ioctl(2).
            "fio": ["/usr/bin/fio", "--name=denied", "--ioengine=io_uring", "--rw=randread", "--bs=4k", "--size=64k", "--thread",
                    "--eta=never"],
            "dynamic": [compiled(folder, "dynamic", "requests.c")],
            "static": [compiled(folder, "static", "requests.c", "-static")],
        }
        permitted = [word for name in IO_URING for word in (number[name], ACTIONS["EPERM"])]

        def one(case):
            call, action, program = case
            below = lambda more, words: run(
                [str(word) for word in [refusing, number[call], ACTIONS[action], *more, "--", *words]], folder
            )
            result = below(permitted, [binaries / "anyring", "run", "--", *programs[program]])
            if is_well(result):
                return case, "served", result
            if is_refused(result) and action not in MUST_SERVE.get(call, ((), ()))[0]:
                return case, "refused", result
            return case, "neither" if is_well(below([], programs[program])) else "left out", result

        cases = [
            (call, action, program)
            for call in chosen or all_calls
            if call in number
            for action in ACTIONS
            for program in programs
        ]
        if options == ["--sample"]:
            cases = sample(cases)
        listed, met = known(), set()
        counted, rows, failed = collections.Counter(), [], 0
        with ThreadPoolExecutor(3) as pool:
            for case, what, (status, out, err) in pool.map(one, cases):
                rows.append(f"{' '.join(case)}: {what}\n")
                counted[what] += 1
                entries = {entry for entry in listed if all(a in ("*", b) for a, b in zip(entry, case))}
                if what == "neither":
                    met |= entries
                wrong = what == "neither" and not entries
                failed += wrong
                if wrong or chosen:
                    print(f"{'FAILED: ' if wrong else ''}{' '.join(case)}: {what}: {status} {out[-100:]!r} {err[-300:]!r}", flush=True)
        for call, (actions, filters) in MUST_SERVE.items():
            if call not in (chosen or all_calls) or call not in number:
                continue
            for action, filter in itertools.product(actions, filters):
                words = [refusing, number[call], ACTIONS[action], *permitted, "--", binaries / "anyring", "run", "--backend", "user", "--"]
                words += [binaries / "anyring-conformance", "--quiet", "--door", "liburing", "--filter", filter]
                for record in [ROOT / "tests/conformance/oracle.json", *sorted((ROOT / "tests/conformance").glob("oracle-*.json"))]:
                    words += ["--oracle", record]
                words += ["--expect", ROOT / "tests/conformance/differences.txt"]
                status, out, err = run([str(word) for word in words], folder)
                counted["conformance"] += 1
                if status != 0 or not re.search(r"^[1-9]\d* passed, 0 failed", out, re.MULTILINE):
                    failed += 1
                    print(f"FAILED: {call} {action} conformance {filter}: {status} {out[-300:]!r} {err[-300:]!r}", flush=True)
        for options_of_deny in [["--profile", name] for name in PROFILES] + [["--errno", "trap"], ["--errno", "kill"]]:
            for name, program in ({} if chosen else programs).items():
                words = [binaries / "anyring", "deny", *options_of_deny, "--", binaries / "anyring", "run", "--", *program]
                result = run([str(word) for word in words], folder)
                counted["below a profile"] += 1
                if not is_well(result):
                    failed += 1
                    print(f"FAILED: {' '.join(options_of_deny)} {name}: {result}", flush=True)
    if options[:1] == ["--all"]:
        Path(options[1]).write_text("".join(rows))
    if options[:1] in ([], ["--all"]):
        for entry in sorted(set(listed) - met):
            failed += 1
            print(f"FAILED: {' '.join(entry)}: well, or left out, and still in {KNOWN.name}")
    named = ", ".join(f"{count} {what}" for what, count in sorted(counted.items()))
    left_out = counted.get("left out", 0)
    print(f"denied: {named}")
    print(f"{sum(counted.values()) - failed - left_out} passed, {failed} failed, {left_out} skipped")
    sys.exit(failed != 0)


main()
