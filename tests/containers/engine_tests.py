"""Tests for each container engine: tests/containers/in_engines.py calls them with the engine.

A test answers nothing, or why it is skipped. What a program did is told by anyring's own counters, in the volume /results.
"""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

CONTAINERS = Path(__file__).resolve().parents[2] / "docs/containers.md"

# All restrictions at once: not root, nothing writable except the volume and a small /tmp, no capability.
HARDENED = ["--user", "65534:65534", "--read-only", "--tmpfs", "/tmp:size=32m", "--cap-drop", "ALL",
            "--security-opt", "no-new-privileges"]
# fio's message for each refusal. A kernel that serves only NOPs fails later, in many ways.
REFUSALS = {"EPERM": "Operation not permitted", "ENOSYS": "Function not implemented", "NOPs only": ""}


def said(process):
    return f"status {process.returncode}: {process.stdout.strip()[-1500:]}"


def ends(process, *texts, status=0):
    """Asserts a container's exit status and its output."""
    assert process.returncode == status, said(process)
    for text in texts:
        assert text in process.stdout, f"no {text!r}: {said(process)}"


def results(engine):
    """An empty volume /results that every user may write to."""
    folder = engine.work / "results"
    if folder.exists():
        for file in folder.iterdir():
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    else:
        folder.mkdir()
    folder.chmod(0o1777)
    return folder


def completions(engine):
    """Returns anyring's counts in the container by opcode. None if it wrote no counters."""
    file = engine.work / "results" / "counters"
    if not file.exists():
        return None
    text = subprocess.check_output([engine.work / "built/release/anyring", "stats", "--json", file], text=True)
    return {opcode: sum(paths.values()) for opcode, paths in json.loads(text)["completions"].items()}


def served(engine, **least):
    """Asserts that anyring served at least this much; nothing if the kernel's own io_uring works."""
    done = completions(engine)
    if engine.denies is None:
        assert not done, f"the kernel's io_uring works, but anyring served {done}"
        return
    assert done is not None, "no counters: nothing was served"
    for opcode, count in least.items():
        assert done.get(opcode, 0) >= count, f"fewer than {count} {opcode}: {done}"


COUNTERS = ["-e", "ANYRING_STATS=/results/counters"]


def doctor_report(engine):
    process = engine.run("anyring:0.1.0", "doctor", "--json")
    return json.loads(process.stdout)


def doctor(engine):
    results(engine)
    process = engine.run("anyring:0.1.0")
    ends(process)
    report = doctor_report(engine)
    by = {"user": "anyring", "kernel": "the kernel", None: "nobody"}
    engine.answer = f"{engine.denies or 'permitted'} | {by[report['run']['auto']]} | {by[report['run_aio']['auto']]}"
    assert report["verdict"]["runs"], report["verdict"]
    assert report["run"]["auto"] == ("kernel" if engine.denies is None else "user"), report["io_uring"]
    if engine.denies:
        assert not report["io_uring"]["works"], report["io_uring"]
        assert engine.denies == "NOPs only" or engine.denies in report["io_uring"]["answer"], report["io_uring"]
    bad = [check["name"] for check in report["entry_points"] if not check["works"]]
    assert bad == (["guest"] if engine.no_guests else []), f"{bad}: {report['entry_points']}"
    print(f"  {report['verdict']['summary']}")
    print(f"  the kernel's AIO: {report['kernel_aio']['answer']}")
    without = [check["name"] for check in report["building_blocks"] if not check["works"]]
    print(f"  it does without: {', '.join(without) or 'nothing'}")


def plain(engine):
    process = engine.run("fio:plain")
    if engine.denies is None:
        ends(process, "err= 0")
    else:
        assert process.returncode != 0 and REFUSALS[engine.denies] in process.stdout, said(process)


def example(stage, *flags):
    def fio(engine):
        results(engine)
        ends(engine.run(f"fio:{stage}", flags=[*COUNTERS, *flags]), "err= 0")
        # 16 MB in blocks of 4 kB, each written and read back.
        served(engine, READ=4096, WRITE=4096)
    return fio


def hardened(stage):
    # fio's own shared memory, and the pages of its file: 64 MiB is tight with 16 in /tmp.
    return lambda engine: example(stage, *HARDENED, *engine.limits)(engine)


FIO = ["--ioengine=io_uring", "--rw=randwrite", "--bs=4k", "--size=16m", "--iodepth=32", "--verify=crc32c"]
PROGRAM = ["/usr/bin/fio", "--name=volume", "--directory=/results", *FIO]


def recipe(engine, name, number=0):
    """A block of docs/containers.md, by its number after the recipe's name, for a program that writes to /results."""
    text = CONTAINERS.read_text()
    assert f"**{name}" in text, f"docs/containers.md has no recipe {name!r}"
    block = text.split(f"**{name}", 1)[1].split("\n```\n")[2 * number + 1]
    for word, here in [('"$PWD/anyring.d', f'"{engine.work}/built/release'), ("./anyring.d", f"{engine.work}/built/release"),
                       ("/PATH/anyring.d", f"{engine.work}/built/release"), ("IMAGE", "fio:plain"), ("PROGRAM", " ".join(PROGRAM))]:
        block = block.replace(word, here)
    return block


def did_it(engine, process):
    ends(process, "err= 0")
    served(engine, READ=4096, WRITE=4096)


def docker_recipe(line):
    def fio(engine):
        results(engine)
        words = shlex.split(recipe(engine, "Docker, without touching the image").split("\n")[line])
        assert words[:3] == ["docker", "run", "--rm"], words
        image = words.index("fio:plain")
        did_it(engine, engine.run("fio:plain", *words[image + 1:], flags=[*COUNTERS, *words[3:image]]))
    return fio


def containers_conf(engine):
    """A container of an image and a command line that know nothing of anyring."""
    file = Path("/etc/containers/containers.conf")
    before = file.read_text() if file.exists() else ""
    file.write_text(recipe(engine, "Every container of podman"))
    try:
        results(engine)
        did_it(engine, engine.run("fio:plain", *PROGRAM, flags=COUNTERS))
    finally:
        file.write_text(before)


def quadlet(engine):
    """Starts the container of a unit as Quadlet's generator has systemd do it, but in the foreground and without systemd's groups."""
    generator = Path("/usr/libexec/podman/quadlet")
    if not generator.exists():
        return "this podman has no Quadlet"
    results(engine)
    units = engine.work / "quadlet"
    units.mkdir(exist_ok=True)
    here = [f"Image={engine.registry}fio:plain", f"Exec={' '.join(PROGRAM)}", "Network=none", f"Volume={engine.work}/results:/results",
            f"Environment={COUNTERS[1]}", ""]
    (units / "program.container").write_text("\n".join([recipe(engine, "Quadlet"), *here]))
    made = subprocess.run([generator, "-dryrun"], env={"QUADLET_UNIT_DIRS": str(units)}, capture_output=True, text=True, check=True)
    start = next(line for line in made.stdout.split("\n") if line.startswith("ExecStart="))
    podman, *words = shlex.split(start.removeprefix("ExecStart=").replace("%N", "program").replace("%t", "/run"))
    assert podman.endswith("/podman"), start
    did_it(engine, engine.engine(*[word for word in words if word not in ("-d", "--cgroups=split", "--sdnotify=conmon")], limit_s=90))
    return None


def compose(engine):
    if engine.engine("compose", "version").returncode != 0:
        return "this Docker has no `docker compose`"
    folder = results(engine).parent
    (folder / "compose.yaml").write_text(recipe(engine, "Compose"))
    here = ["services:", "  program:", "    network_mode: none", "    environment: {ANYRING_STATS: /results/counters}",
            f"    volumes: ['{folder}/results:/results']", ""]
    (folder / "here.yaml").write_text("\n".join(here))
    files = ["compose", "-f", folder / "compose.yaml", "-f", folder / "here.yaml"]
    try:
        did_it(engine, engine.engine(*files, "up", "--abort-on-container-exit", "--exit-code-from", "program", limit_s=90))
    finally:
        engine.must(*files, "down", "--timeout", "1")
    return None


def lxc_lines(engine):
    return recipe(engine, "LXC").strip().split("\n")


def lxc(engine):
    results(engine)
    did_it(engine, engine.executed(*PROGRAM, lines=["lxc.environment = ANYRING_STATS=/results/counters", *lxc_lines(engine)]))


def lxc_attach(engine):
    results(engine)
    did_it(engine, engine.attached(*PROGRAM, lines=["lxc.environment = ANYRING_STATS=/results/counters", *lxc_lines(engine)]))


def lxc_default(engine):
    results(engine)
    report = json.loads(engine.run("anyring:0.1.0", "doctor", "--json", profile=None).stdout)
    assert report["run"]["auto"] == "kernel", report["io_uring"]


def service(number):
    """A service of docs/containers.md."""
    def fio(engine):
        results(engine)
        did_it(engine, engine.service(recipe(engine, "systemd", number)))
    return fio


def drop_in(number):
    """A service that may not use io_uring, with a drop-in of docs/production.md."""
    def fio(engine):
        results(engine)
        text = (CONTAINERS.parent / "production.md").read_text().split("## A systemd service", 1)[1]
        override = text.split("\n```\n")[2 * number + 1].replace("/usr/sbin/PROGRAM", " ".join(PROGRAM))
        did_it(engine, engine.service(recipe(engine, "systemd").replace("/usr/bin/anyring run -- ", ""), override))
    return fio


def killing_service(engine):
    """A filter that kills, and a program that calls libc's syscall(). One with its own instructions is killed in any case."""
    results(engine)
    unit = recipe(engine, "systemd").replace(" ".join(PROGRAM), f"{engine.work}/programs/tokio-uring /results/file")
    ends(engine.service(unit.replace("SystemCallErrorNumber=EPERM\n", "")), "checksums equal")
    served(engine, READ=256, WRITE=256, ACCEPT=1)


def plain_service(engine):
    results(engine)
    process = engine.service(recipe(engine, "systemd").replace("/usr/bin/anyring run -- ", ""))
    assert REFUSALS["EPERM"] in process.stdout, said(process)


def in_scratch(program, *words, text, status=0, **least):
    def static(engine):
        path = engine.work / "programs" / program
        if not path.exists():
            return f"{program} was not built: {(path.parent / (program + '.why')).read_text().strip()}"
        results(engine)
        ends(engine.run("more:scratch", path, *words, flags=COUNTERS), text, status=status)
        served(engine, **least)
        return None
    return static


def go(engine):
    path = engine.work / "programs" / "go"
    if not path.exists():
        return f"it was not built: {(path.parent / 'go.why').read_text().strip()}"
    results(engine)
    script = f"cp {path} /tmp/go && exec /tmp/go"
    ends(engine.run("more:run", "sh", "-c", script, flags=COUNTERS), "a child's NOP: 0", "a signal:", status=3)
    served(engine, READ=1)
    return None


def tokio(engine):
    results(engine)
    ends(engine.run("more:run", engine.work / "programs/tokio-uring", "/results/file", flags=COUNTERS), "checksums equal")
    served(engine, READ=256, WRITE=256, ACCEPT=1)


def qemu(aio, cache):
    def image(engine):
        folder = results(engine)
        (folder / "disk").write_bytes(bytes(16 << 20))
        (folder / "disk").chmod(0o666)
        patterns = ["write -P 17 0 4k", "write -P 34 64k 64k", "write -P 51 1M 1M", "flush",
                    "read -P 17 0 4k", "read -P 34 64k 64k", "read -P 51 1M 1M", "read -P 0 4k 60k"]
        words = [word for pattern in patterns for word in ("-c", pattern)]
        access = ["-f", "raw", "-i", aio, "-t", cache]
        ends(engine.run("more:run", "qemu-io", *access, *words, "/results/disk", flags=COUNTERS))
        bench = ["-c", "4096", "-d", "32", "-s", "4096", "-w", "--pattern=171"]
        ends(engine.run("more:run", "qemu-img", "bench", *access, *bench, "/results/disk", flags=COUNTERS))
        assert (folder / "disk").read_bytes() == bytes([171]) * (16 << 20), "a block does not hold the pattern"
        if aio == "io_uring":
            served(engine, WRITEV=4096)
    return image


# The server is stopped and its pages are checked against their checksums.
POSTGRES = """set -e
export PATH=$1:$PATH LC_ALL=C
cd /results
anyring run -- initdb --pgdata=data --data-checksums --no-locale --encoding=UTF8 --username=tester --no-sync \
  --set=io_method=io_uring --set=shared_buffers=8MB >initdb.log 2>&1 || { tail -n 3 initdb.log; exit 1; }
anyring run -- postgres -D data -k /tmp -c listen_addresses= -c max_connections=20 -c io_max_concurrency=32 \
  -c dynamic_shared_memory_type=mmap >log 2>&1 &
server=$!
ask() { psql -h /tmp -U tester -d postgres -Atqc "$1"; }
for i in $(seq 300); do ask 'select 1' >/dev/null 2>&1 && break; sleep 0.2; done
ask 'show io_method' || { tail -n 5 log; exit 1; }
pgbench -h /tmp -U tester --initialize --quiet --scale=3 postgres >/dev/null 2>&1
pgbench -h /tmp -U tester --client=4 --jobs=2 --transactions=100 postgres 2>&1 | grep 'failed transactions'
ask 'select sum(abalance) = (select sum(bbalance) from pgbench_branches) from pgbench_accounts'
kill -INT $server
wait $server
pg_checksums --check --pgdata=data | grep Bad
"""


def postgres(engine):
    place = engine.work / "programs" / "postgres"
    if not place.exists():
        return (engine.work / "programs" / "postgres.why").read_text().strip()
    folder = results(engine)
    directory = (folder.parent / "programs/postgres.bin").read_text().strip()
    process = engine.run("more:run", "sh", "-c", POSTGRES, "sh", directory, flags=["--entrypoint", "", *COUNTERS])
    ends(process, "io_uring\n", "failed transactions: 0 ", "\nt\n", "Bad checksums:  0")
    served(engine, READ=100)
    return None


def conformance(engine):
    results(engine)
    program = engine.work / "programs/anyring-conformance-plain"
    lists = ["differences.txt", *(f"differences-engine-{name}.txt" for name in engine.lists)]
    expect = [word for name in lists for word in ("--expect", engine.work / "programs/lists" / name)]
    words = [program, "--quiet", "--jobs", "8", "--confirm", "3", *expect, *engine.cases]
    process = engine.run("more:run", *words, limit_s=900,
                         flags=["-e", "TMPDIR=/results", "-e", "ANYRING_BACKEND=user", "-e", "ANYRING_AIO=user"])
    lines = process.stdout.strip().split("\n")
    # Each failed case with the first line of its reason, however many there are.
    failed = [" ".join(lines[at:at + 2]) for at, line in enumerate(lines) if line.startswith("FAIL")]
    assert process.returncode == 0, "\n".join([f"status {process.returncode}", *failed, lines[-1]])
    print(f"  {lines[-1]}")


def guest(test):
    """A test that needs guests. Where none run, it checks that `anyring run` refuses in one line, and skips."""
    def tried(engine):
        if not engine.no_guests:
            return test(engine)
        results(engine)
        process = engine.run("fio:file")
        ends(process, engine.no_guests, status=125)
        assert process.stdout.count("\n") == 1, said(process)
        return f"no guests, and `anyring run` says so: {engine.no_guests}"
    return tried


# The tests for all engines: name, image, and function.
TESTS = [
    ("doctor says what the container permits", "anyring:0.1.0", doctor),
    ("fio without anyring", "fio:plain", plain),
    ("LD_PRELOAD: fio", "fio:preload", example("preload")),
    ("entry point: fio", "fio:run", example("run")),
    ("one file: fio as a guest", "fio:file", guest(example("file"))),
    ("a volume and LD_PRELOAD: fio", "fio:plain", docker_recipe(0)),
    ("a volume and an entry point: fio", "fio:plain", docker_recipe(1)),
    ("LD_PRELOAD, hardened", "fio:preload", hardened("preload")),
    ("entry point, hardened", "fio:run", hardened("run")),
    ("one file, hardened", "fio:file", guest(hardened("file"))),
    ("scratch: a static program, musl", "more:scratch", guest(in_scratch("nop-musl", "1000", "3", text="ns", NOP=3000))),
    ("scratch: a static program, glibc", "more:scratch", guest(in_scratch("static-liburing", "/results/file", text="", READ=1))),
    ("scratch: a static program, Go", "more:scratch", guest(in_scratch("go", "child", text="a child's NOP: 0", status=9, NOP=1))),
    ("a static Go server and its children", "more:run", guest(go)),
    ("tokio-uring", "more:run", tokio),
    ("qemu, io_uring", "more:run", qemu("io_uring", "writeback")),
    ("qemu, Linux AIO", "more:run", qemu("native", "none")),
    ("PostgreSQL 18", "more:run", postgres),
    ("conformance cases", "more:run", conformance),
]

COMPOSE = [("Compose", compose)]

PODMAN = [("containers.conf: fio", containers_conf), ("Quadlet: fio", quadlet)]

LXC = [
    ("lxc.environment: fio", lxc),
    ("lxc-attach: fio", lxc_attach),
    ("LXC's own profile permits io_uring", lxc_default),
    ("a service's filter, without anyring", plain_service),
    ("a service", service(0)),
    ("a service, hardened", service(1)),
    ("a service with a drop-in: LD_PRELOAD", drop_in(0)),
    ("a service with a drop-in: the command", drop_in(1)),
    ("a service that is killed for io_uring", killing_service),
]


def tests_of(engine):
    only = os.environ.get("ONLY", "")
    everywhere = [(name, test) for name, image, test in TESTS if engine.has(image)]
    return [(name, test) for name, test in everywhere + engine.own_tests if only in name]
