"""Runs anyring in real container engines: inside the tree that tests/containers/enter-tree.sh made, whose engines these are.

usage: in_engines.py WORK LABEL ENGINE...     (WORK: what scripts/engines.sh prepared; LABEL: the tree's name)

WORK has base.tar (Debian's base image), built/ (what anyring is installed from), programs/ (what runs in containers, mounted there under its own path) and
images/ (each image as the first engine built it, which the others load). No image is pulled. Containers have no network, but for
the builds, which install Debian's packages.
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import engine_tests

SOURCES = Path(__file__).resolve().parents[2]
PACKAGING = SOURCES / "packaging"
# A build, and a container: the slowest is the installation of packages.
BUILD_LIMIT_S, RUN_LIMIT_S = 600, 90
USER = "engines"
CONTAINER_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
EXAMPLE = "packaging/Dockerfile.example"
# A substitute for the image with a Rust toolchain: the existing build, where `make` expects it.
TOOLCHAIN = """FROM debian:12-slim
COPY . /built
ENV CARGO_TARGET_DIR=/built
"""
MORE = """FROM fio:run
USER 0:0
RUN apt-get update && apt-get install -y --no-install-recommends qemu-utils
USER 65534:65534
"""
SCRATCH = """FROM scratch
COPY --from=anyring:0.1.0 /usr/bin/anyring /anyring
ENTRYPOINT ["/anyring", "run", "--"]
"""
# The build of each image: a Dockerfile's name and stage, or its text; and the context.
BASES = {"rust:1.95-slim-bookworm": (TOOLCHAIN, None, "built")}
IMAGES = {
    "anyring:0.1.0": ("packaging/Dockerfile", "anyring", SOURCES),
    "fio:plain": (EXAMPLE, "fio", PACKAGING),
    "fio:preload": (EXAMPLE, "preload", PACKAGING),
    "fio:run": (EXAMPLE, "run", PACKAGING),
    "fio:file": (EXAMPLE, "file", PACKAGING),
    "more:run": (MORE, None, "programs/lists"),
    "more:scratch": (SCRATCH, None, "programs/lists"),
}


def call(words, limit_s=60, **options):
    """Runs words and returns the finished process, its output together; status 124 if it took too long."""
    words = [str(word) for word in words]
    options = {"stdin": subprocess.DEVNULL, "text": True} | options
    # Not a pipe: rootless podman leaves a process that would keep it open.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            status, late = subprocess.run(words, stdout=output, stderr=output, timeout=limit_s, **options).returncode, ""
        except subprocess.TimeoutExpired:
            status, late = 124, f"\nno end within {limit_s} s"
        output.seek(0)
        return subprocess.CompletedProcess(words, status, output.read() + late)


def said(process):
    return f"status {process.returncode}: {process.stdout.strip()[-1500:]}"


def must(words, **options):
    process = call(words, **options)
    assert process.returncode == 0, f"{' '.join(map(str, words))}: {said(process)}"
    return process.stdout.strip()


class Unavailable(Exception):
    """The reason why an engine is unavailable here."""


class Engine:
    """A container engine, with docker's command line."""

    # Options for building images: legacy ones that its kind needs. Only builds have a network.
    build_options = ["--network", "host"]
    denies = "EPERM"
    # The limits of a container.
    limits = ["--memory", "64m", "--pids-limit", "8", "--cpus", "0.5"]
    # The registry for an image's short name: without it podman asks for one.
    registry = ""
    # The table's entry: doctor's output.
    answer = "- | - | -"
    # The reason why no program runs as a guest here, as `anyring run` prints it.
    no_guests = None
    # The number of containers that all engines started.
    runs = 0
    # The conformance cases that run, by filters, and the lists of differences that they have here.
    cases, lists = ["--filter", "rw_", "--filter", "poll", "--filter", "sqpoll", "--filter", "net_", "--filter", "aio_"], []

    # Tests for this engine only, beside those for all engines.
    own_tests = []

    def __init__(self, label, work):
        self.label, self.work = label, work
        self.cli, self.options = [], []
        self.environment = os.environ | {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}

    def start(self):
        """Makes the engine ready, and says what was started."""

    def has(self, image):
        return image in IMAGES

    def engine(self, *words, limit_s=60, **options):
        return call([*self.cli, *words], limit_s, env=self.environment, **options)

    def run(self, image, *words, flags=(), limit_s=RUN_LIMIT_S):
        """A container of the image, which is gone afterwards. Beyond its limit it is removed: ending the command line does not end it."""
        Engine.runs += 1
        name = f"anyring-{Engine.runs}"
        programs, results = self.work / "programs", self.work / "results"
        volumes = ["-v", f"{programs}:{programs}:ro", "-v", f"{results}:/results"]
        options = ["--rm", "--name", name, "--network", "none", *self.options, *volumes, *flags]
        process = self.engine("run", *options, image, *words, limit_s=limit_s)
        if process.returncode == 124:
            self.engine("rm", "--force", name)
        return process

    def begins(self):
        """Starts a container that sleeps."""
        engine_tests.results(self)
        process = self.run("fio:plain", "0.1", flags=["--entrypoint", "/bin/sleep"])
        if process.returncode != 0:
            raise Unavailable(f"no container runs here: {' '.join(said(process).split())[:300]}")

    def provide(self):
        """Has all images: loads what the first engine saved, or builds them as the documents say."""
        saved = self.work / "images"
        if (saved / "done").exists():
            for image in IMAGES:
                self.load(saved / f"{image.replace(':', '-')}.tar", image)
            return
        self.must("import", self.work / "base.tar", f"{self.registry}debian:12-slim")
        for image, how in (BASES | IMAGES).items():
            self.build(self.registry + image, *how)
        saved.mkdir()
        for image in IMAGES:
            file = saved / f"{image.replace(':', '-')}.tar"
            self.must("save", "-o", file, self.registry + image)
            file.chmod(0o644)  # for another user's engine, too
        (saved / "done").touch()

    def must(self, *words, limit_s=BUILD_LIMIT_S, **options):
        process = self.engine(*words, limit_s=limit_s, **options)
        assert process.returncode == 0, f"{words[0]}: {said(process)}"
        return process.stdout.strip()

    def build(self, image, file, stage, context):
        began = time.monotonic()
        if stage:
            words = ["-f", SOURCES / file, "--target", stage, context]
            self.must("build", *self.build_options, "-t", image, *words)
        else:
            self.must("build", *self.build_options, "-t", image, "-f", "-", self.work / context, input=file, stdin=None)
        print(f"  built {image} in {time.monotonic() - began:.0f} s", flush=True)

    def load(self, file, image):
        self.must("load", "-i", file)

    def version(self):
        raise NotImplementedError


class Docker(Engine):
    """dockerd with a socket of its own, and no bridge or firewall rule."""

    daemon = None

    def __init__(self, label, work, runtime=None):
        super().__init__(label, work)
        self.runtime = runtime
        self.cli = ["docker", "-H", "unix:///run/engines.sock"]
        self.environment["DOCKER_BUILDKIT"] = "0"
        if runtime:
            self.cases, self.denies, self.lists = [], "ENOSYS", ["gvisor"]
            if "2022" in self.version():  # of Debian 12
                self.denies, self.lists = "NOPs only", ["gvisor", "gvisor-2022"]
            self.options = ["--runtime", runtime]
            self.no_guests = "the kernel does not let programs set the FS base"
            # The sandbox itself counts, too.
            self.limits = ["--memory", "512m", "--cpus", "0.5"]
        else:
            self.cases, self.denies, self.own_tests = [], "EPERM", engine_tests.COMPOSE
            if self.version().startswith("Docker 20."):
                self.denies, self.lists = None, ["docker-20"]

    def start(self):
        if Docker.daemon:
            return
        configuration = Path("/run/engines.json")
        runtimes = {f"runsc-{platform}": {"path": "/usr/bin/runsc", "runtimeArgs": [f"--platform={platform}", "--network=none"]}
                    for platform in ("systrap", "ptrace")}
        configuration.write_text(json.dumps({"runtimes": runtimes if shutil.which("runsc") else {}}))
        words = ["dockerd", "-H", "unix:///run/engines.sock", "-p", "/run/engines.pid", "--config-file", configuration]
        words += ["--iptables=false", "--ip6tables=false", "--bridge=none", "--exec-opt", "native.cgroupdriver=cgroupfs"]
        log = open(self.work / f"dockerd-{self.label}.log", "w")
        Docker.daemon = subprocess.Popen(words, stdout=log, stderr=log)
        atexit.register(Docker.stop)
        print(f"  started dockerd, process {Docker.daemon.pid}, log {log.name}", flush=True)
        deadline = time.monotonic() + 60
        while self.engine("info").returncode != 0:
            if Docker.daemon.poll() is not None or time.monotonic() > deadline:
                raise Unavailable("dockerd does not start: " + Path(log.name).read_text().strip().split("\n")[-1])
            time.sleep(0.2)

    @staticmethod
    def stop():
        Docker.daemon.terminate()
        try:
            Docker.daemon.wait(30)
        except subprocess.TimeoutExpired:
            Docker.daemon.kill()
        print(f"  ended dockerd, process {Docker.daemon.pid}", flush=True)

    def provide(self):
        # Runtimes of one daemon share its images.
        if self.engine("image", "inspect", *IMAGES).returncode != 0:
            super().provide()

    def version(self):
        docker = must(["docker", "--version"]).split()[2].rstrip(",").split("+")[0]
        if self.runtime:
            runsc = must(["runsc", "--version"]).split("\n")[0].split()[-1]
            return f"gVisor {runsc}, {self.runtime.split('-')[1]}, in Docker {docker}"
        return f"Docker {docker}, {' '.join(must(['runc', '--version']).split()[0:3:2])}"


class Podman(Engine):
    """podman with crun, as root or as a new user."""

    denies = "ENOSYS"
    registry = "docker.io/library/"
    own_tests = engine_tests.PODMAN

    def __init__(self, label, work, rootless=False):
        super().__init__(label, work)
        self.rootless = rootless
        self.cli = ["podman", "--cgroup-manager", "cgroupfs", "--runtime", "crun", "--events-backend", "file"]
        if rootless:
            self.limits = []  # which are the system's to give: a service manager's, for each user

    def start(self):
        Path("/etc/containers").mkdir(exist_ok=True)
        if not Path("/etc/containers/policy.json").exists():
            Path("/etc/containers/policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        if not self.rootless:
            return
        if call(["id", USER]).returncode != 0:
            must(["useradd", "--create-home", "--uid", "4711", USER])
        for file in ("/etc/subuid", "/etc/subgid"):
            Path(file).write_text(f"{USER}:200000:65536\n")
        home, runtime = self.work / "tree/state" / USER, Path("/run/user/4711")
        for folder in (home, runtime):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
            shutil.chown(folder, USER, USER)
        variables = ["PODMAN_IGNORE_CGROUPSV1_WARNING=1", f"HOME={home}", f"XDG_RUNTIME_DIR={runtime}", f"PATH={os.environ['PATH']}"]
        self.cli = ["setpriv", "--reuid=4711", "--regid=4711", "--init-groups", "env", "-i", "-C", home, *variables, *self.cli]

    def load(self, file, image):
        self.must("load", "-i", file)
        # The name of an image saved by another podman is under localhost, one of Docker's under docker.io.
        assert self.engine("image", "inspect", image).returncode == 0, f"{image} is not there after load"

    def version(self):
        rootless = ", rootless" if self.rootless else ""
        return f"podman {must(['podman', '--version']).split()[-1]}{rootless}, {must(['crun', '--version']).split(chr(10))[0]}"


class Lxc(Engine):
    """LXC, with a whole system in each container, and a seccomp profile that refuses io_uring, which LXC's own does not."""

    cases = []
    own_tests = engine_tests.LXC
    # A substitute for each image: the words before the command, the default command, and the user.
    images = {
        "anyring:0.1.0": (["/usr/bin/anyring"], ["doctor"], 0),
        "fio:plain": ([], ["/usr/bin/fio", *engine_tests.FIO, "--name=example"], 65534),
        "more:run": (["/usr/bin/anyring", "run", "--"], [], 65534),
    }
    profile = "2\ndenylist\n[all]\nio_uring_setup errno 1\nio_uring_enter errno 1\nio_uring_register errno 1\n"

    def __init__(self, label, work):
        super().__init__(label, work)
        self.root = work / "tree/state/lxc"

    def has(self, image):
        return image in self.images

    def provide(self):
        """A system of Debian's with the programs, and anyring as it is installed."""
        began = time.monotonic()
        self.root.mkdir()
        self.root.chmod(0o755)
        must(["tar", "-xf", self.work / "base.tar", "-C", self.root])
        shutil.copy("/etc/resolv.conf", self.root / "etc")
        install = "apt-get update && apt-get install -y --no-install-recommends fio qemu-utils systemd"
        environment = self.environment | {"DEBIAN_FRONTEND": "noninteractive"}
        must(["chroot", self.root, "sh", "-c", install], limit_s=BUILD_LIMIT_S, env=environment)
        (self.root / "usr/lib/anyring").mkdir()
        shutil.copy(self.work / "built/release/anyring", self.root / "usr/bin")
        shutil.copy(self.work / "built/release/libanyring.so", self.root / "usr/lib/anyring")
        print(f"  made {self.root} in {time.monotonic() - began:.0f} s", flush=True)

    def configured(self, *lines, profile=profile):
        """A new container's name, and the file with its configuration."""
        Engine.runs += 1
        name = f"anyring-{Engine.runs}"
        file, filters = self.work / f"{name}.conf", self.work / f"{name}.seccomp"
        filters.write_text(profile or "")
        programs = self.work / "programs"
        common = ["lxc.include = /usr/share/lxc/config/common.conf", f"lxc.uts.name = {name}", f"lxc.rootfs.path = dir:{self.root}",
                  "lxc.net.0.type = empty", "lxc.net.0.flags = up", "lxc.apparmor.profile = unconfined", f"lxc.environment = PATH={CONTAINER_PATH}",
                  *self.volume(programs, programs, "bind,ro"), *self.volume(self.work / "results", "/results", "bind")]
        file.write_text("\n".join([*common, *([f"lxc.seccomp.profile = {filters}"] if profile else []), *lines, ""]))
        return name, file

    @staticmethod
    def volume(outside, inside, options):
        return [f"lxc.mount.entry = {outside} {str(inside).lstrip('/')} none {options},create=dir 0 0"]

    def run(self, image, *words, flags=(), limit_s=RUN_LIMIT_S, profile=profile):
        """`lxc-execute`, configured by docker's options."""
        entry, otherwise, user = self.images[image]
        lines, flags = [f"lxc.init.uid = {user}", f"lxc.init.gid = {user}", "lxc.init.cwd = /tmp"], list(flags)
        while flags:
            option, value = flags.pop(0), flags.pop(0)
            if option == "-e":
                lines.append(f"lxc.environment = {value}")
            elif option == "-v":
                outside, inside, *rights = value.split(":")
                lines += self.volume(outside, inside, ",".join(["bind", *rights]))
            else:
                assert option == "--entrypoint", option
                entry = [value] if value else []
        return self.executed(*entry, *(words or otherwise), lines=lines, limit_s=limit_s, profile=profile)

    def executed(self, *words, lines=(), limit_s=RUN_LIMIT_S, profile=profile):
        name, file = self.configured(*lines, profile=profile)
        process = call(["lxc-execute", "-n", name, "-f", file, "--", *words], limit_s, env={"PATH": CONTAINER_PATH})
        if process.returncode == 124:
            call(["lxc-stop", "--kill", "-n", name])
        return process

    def attached(self, *words, lines=()):
        """`lxc-attach` to a container that sleeps."""
        name, file = self.configured(*lines)
        must(["lxc-start", "-n", name, "-f", file, "--", "/bin/sleep", "infinity"], env={"PATH": CONTAINER_PATH})
        try:
            return call(["lxc-attach", "-n", name, "-f", file, "--", *words], RUN_LIMIT_S, env={"PATH": CONTAINER_PATH})
        finally:
            must(["lxc-stop", "--kill", "-n", name])

    def service(self, unit, drop_in=""):
        """Runs a service by systemd, which is a container's first process and ends with it; the container has LXC's own profile, so that
        only the service's filter refuses anything. Its output is in /results/out. The drop-in is what `systemctl edit` writes."""
        folder = self.root / "etc/systemd/system"
        (folder / "program.service.d").mkdir(exist_ok=True)
        (folder / "program.service").write_text(unit)
        (folder / "program.service.d/override.conf").write_text(drop_in)
        (folder / "program.service.d/test.conf").write_text("\n".join([
            "[Unit]", "SuccessAction=exit-force", "FailureAction=exit-force",
            "[Service]", "Type=oneshot", "StandardOutput=file:/results/out", "StandardError=file:/results/out",
            "Environment=ANYRING_STATS=/results/counters", "ReadWritePaths=/results", ""]))
        name, file = self.configured(profile=None)
        words = ["/lib/systemd/systemd", "--unit=program.service"]
        process = call(["lxc-start", "-F", "-n", name, "-f", file, "--", *words], RUN_LIMIT_S, env={"PATH": CONTAINER_PATH})
        if process.returncode == 124:
            call(["lxc-stop", "--kill", "-n", name])
        out = self.work / "results/out"
        process.stdout = out.read_text() if out.exists() else process.stdout
        return process

    def version(self):
        return f"LXC {must(['lxc-start', '--version'])}, a profile that refuses io_uring"


KINDS = {
    "docker": lambda *where: Docker(*where),
    "runsc-systrap": lambda *where: Docker(*where, "runsc-systrap"),
    "runsc-ptrace": lambda *where: Docker(*where, "runsc-ptrace"),
    "podman": lambda *where: Podman(*where),
    "podman-rootless": lambda *where: Podman(*where, rootless=True),
    "lxc": lambda *where: Lxc(*where),
}


def main():
    work, label = Path(sys.argv[1]), sys.argv[2]
    passed = failed = skipped = 0
    rows = open(work / "rows", "a")
    for kind in sys.argv[3:]:
        try:
            engine = KINDS[kind](label, work)
            print(f"--- {engine.version()} (Debian {label})", flush=True)
            engine.start()
            engine.provide()
            engine.begins()
        except (Unavailable, FileNotFoundError) as reason:
            print(f"skip: {kind} of Debian {label}: {reason}")
            skipped += 1
            continue
        except AssertionError as error:
            print(f"FAILED: the images of {kind}, Debian {label}: {error}")
            failed += 1
            continue
        bad = 0
        for name, test in engine_tests.tests_of(engine):
            began = time.monotonic()
            try:
                why_not = test(engine)
            except Exception as error:  # the next test runs nevertheless
                bad += 1
                where = traceback.extract_tb(error.__traceback__)[-1]
                print(f"FAILED: {kind}: {name} (line {where.lineno}): {error}", flush=True)
            else:
                if why_not:
                    skipped += 1
                    print(f"skip: {kind}: {name}: {why_not}", flush=True)
                else:
                    passed += 1
                    print(f"ok: {kind}: {name} ({time.monotonic() - began:.1f} s)", flush=True)
        failed += bad
        rows.write(f"| {engine.version()} | {engine.answer} | {bad or 'none'} |\n")
        rows.flush()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
