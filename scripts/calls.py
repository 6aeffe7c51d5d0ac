#!/usr/bin/env python3
"""Lists the system calls that anyring makes, from a trace of all conformance cases. They are the calls from the
library's own text, and those by which libc makes and ends the library's threads. Compares them with
packaging/seccomp/anyring.json, which a filter can take as it is.

usage: scripts/calls.py BIN [--write]      (BIN: the folder with anyring-conformance and libanyring.so)

The script needs strace and nm. The exit status is 1 if the file lacks a call that was made. A call that is listed and
was not made is named, but is no failure, since some calls depend on the kernel or the machine. --write makes the file,
and the line of docs/containers.md.
"""

import collections
import ctypes
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FRAGMENT = ROOT / "packaging/seccomp/anyring.json"
PAGE = ROOT / "docs/containers.md"
LINE = re.compile(r"^(\d+) +\[([0-9a-f]+)\] (\w+)\((.*)$")
# The calls of pthread_create(3), of a thread's end, of signal handlers and of the process's end.
BY_LIBC = {"clone", "clone3", "exit", "exit_group", "madvise", "mprotect", "restart_syscall", "rseq", "rt_sigreturn", "set_robust_list"}
TOPICS = ["nop", "enter", "timeout", "rw_pipe", "net_data", "fs"]
# Calls that strace may not yet know by name.
NEWER = {"syscall_0x1c6": "futex_wake", "syscall_0x1c7": "futex_wait", "syscall_0x1c8": "futex_requeue"}
# Calls that such a filter is there to refuse. It must answer them by an error number.
REFUSED = {"io_uring_setup", "io_uring_enter", "io_uring_register"}


def segment(library):
    """Where its code is, from its beginning on, and where its own syscall(3) is, by which the program's calls go."""
    headers = subprocess.run(["readelf", "-lW", library], check=True, capture_output=True, text=True).stdout
    code = next(line.split() for line in headers.splitlines() if " LOAD " in line and " R E " in line)
    symbols = subprocess.run(["nm", "-D", "-S", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    start, size = next(line.split()[:2] for line in symbols.splitlines() if line.endswith(" T syscall"))
    first = int(start, 16)
    return int(code[2], 16), range(first, first + int(size, 16))


def made(trace, library):
    address, program = segment(library)
    # The address of the library's code in each process. A new process has it where the process that cloned last has it.
    opened, code, cloner = {}, {}, None
    calls, programs = collections.Counter(), collections.Counter()
    for line in trace:
        found = LINE.match(line)
        if not found:
            continue
        process, place, name, rest = found.groups()
        where = code.setdefault(process, code.get(cloner))
        answer = rest.rsplit("= ", 1)[-1].split()[:1]
        if name in ("clone", "clone3", "vfork", "fork"):
            cloner = process
        elif name == "execve" and answer == ["0"]:
            code[process] = where = None
        elif name == "openat" and str(library) in rest:
            opened[process] = answer
        elif name == "mmap" and "PROT_EXEC" in rest and [rest.split(", ")[4]] == opened.get(process):
            del opened[process]
            start = int(answer[0], 16)
            code[process] = start - address, range(start, start + int(rest.split(", ")[1]))
        place = int(place, 16)
        if where and place in where[1] and place - where[0] not in program:
            calls[name] += 1
        else:
            programs[name] += 1
    known = lambda names: {NEWER.get(name, name) for name in names}
    return known(calls) | BY_LIBC, known(programs)


def permit(names):
    """In the child: a filter that kills for all but these, and refuses io_uring's own calls by EPERM."""
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header)}
    code = [(0x20, 0, 0, 0)]
    for answer, chosen in ((0x7FFF0000, names), (0x00050001, REFUSED)):
        for number in sorted(numbers[name] for name in chosen if name in numbers):
            code += [(0x15, 0, 1, number), (0x06, 0, 0, answer)]
    code.append((0x06, 0, 0, 0x80000000))
    words = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *word) for word in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(words)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program):
        os._exit(99)


def main():
    folder = Path(sys.argv[1]).resolve()
    library = folder / "libanyring.so"
    with tempfile.NamedTemporaryFile("r", errors="replace") as trace:
        words = ["strace", "-f", "-i", "-qq", "-e", "signal=none", "-s", "256", "-o", trace.name]
        variables = {"LD_PRELOAD": library, "ANYRING_BACKEND": "user", "ANYRING_AIO": "user"}
        words += [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
        # Under strace some cases about threads fail, but they make their calls all the same.
        subprocess.run([*words, folder / "anyring-conformance", "--quiet", "--spread"], stdout=subprocess.DEVNULL)
        calls, programs = made(trace, library)
    calls -= REFUSED
    text = json.dumps({"names": sorted(calls), "action": "SCMP_ACT_ALLOW"}, indent=2) + "\n"
    if "--write" in sys.argv:
        FRAGMENT.write_text(text)
        page = re.sub(r"(?m)^SystemCallFilter=accept4 .*$", "SystemCallFilter=" + " ".join(sorted(calls)), PAGE.read_text())
        PAGE.write_text(page)
    listed = set(json.loads(FRAGMENT.read_text())["names"])
    for name in sorted(listed - calls):
        print(f"listed, and not made here: {name}")
    for name in sorted(calls - listed):
        print(f"FAILED: {name} is made, and {FRAGMENT.relative_to(ROOT)} does not list it")
    # Some cases run again under a filter that permits only the listed calls and the program's own, and kills for others.
    cases = [folder / "anyring-conformance", "--quiet", "--spread", *(f"--filter={topic}::" for topic in TOPICS)]
    below = subprocess.run(cases, env={**os.environ, **variables}, close_fds=False,
                           preexec_fn=lambda: permit(listed | programs - REFUSED))
    failed = len(calls - listed) + (below.returncode != 0)
    print(f"calls: {len(calls & listed)} passed, {failed} failed")
    sys.exit(failed != 0)


main()
