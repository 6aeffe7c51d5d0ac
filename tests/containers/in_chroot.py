"""Runs the steps of the Dockerfiles and of the pod, parsed from those very files, in chroots.

What stands in for a container engine:
- an image is a folder, first a copy of the debootstrapped system; RUN, COPY, ENV, WORKDIR, USER, ENTRYPOINT and CMD do
  what they say there. An instruction that this file does not know ends the test.
- a container is the image's folder in a mount and pid namespace of its own, with the image's environment and user.
- the runtime's seccomp profile is `anyring deny --profile docker` of this build, its binary mounted at /run/deny.
- a pod's emptyDir is a tmpfs of its size, readOnlyRootFilesystem a read-only remount, drop ALL an empty bounding set.
  CPU and memory limits are not applied.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2]
PACKAGING = SOURCES / "packaging"
# A step: the slowest is the installation of packages, or with --full the build.
LIMIT_S = {False: 240, True: 1800}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TOOLCHAIN = "/opt/toolchain"
# Substitutes for the base images; the second has Rust and a C compiler.
BASES = ("debian:12-slim", "rust:1.95-slim-bookworm")


def instructions(dockerfile):
    """The Dockerfile's instructions as (name, text), comments gone and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.M)
    text = text.replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


class Image:
    """A folder, and the configuration of its containers."""

    def __init__(self, root, parent=None):
        self.root = root
        self.env = dict(parent.env) if parent else {"PATH": PATH}
        self.user, self.folder = (parent.user, parent.folder) if parent else ("0:0", "/")
        self.entrypoint, self.command = (parent.entrypoint, parent.command) if parent else ([], [])
        # True if this stage has a CMD of its own: an ENTRYPOINT removes its parent's.
        self.has_command = False
        # The steps that made the folder so far, while their text alone determines it: the key of a kept layer.
        self.history = parent.history and list(parent.history) if parent else []

    def inside(self, path):
        return self.root / os.path.join(self.folder, path).lstrip("/")

    def configure(self, name, text):
        """Applies the instruction to the configuration. False if it changes files only."""
        if name == "ENV":
            self.env |= dict(pair.split("=", 1) for pair in shlex.split(text))
        elif name == "WORKDIR":
            self.folder = os.path.join(self.folder, text)
        elif name == "USER":
            self.user = text
        elif name == "ENTRYPOINT":
            self.entrypoint = json.loads(text)
            if not self.has_command:
                self.command = []
        elif name == "CMD":
            self.command, self.has_command = json.loads(text), True
        else:
            return False
        return True


def parent_and_stage(text):
    """The two names in a FROM."""
    parent, word, stage = text.split()
    assert word == "AS", text
    return parent, stage


def configurations(dockerfile):
    """The Dockerfile's stages by name, configured but without files. They hold nothing from a base image."""
    images = {}
    for name, text in instructions(dockerfile):
        if name == "FROM":
            parent, stage = parent_and_stage(text)
            images[stage] = image = Image(None, images.get(parent))
        else:
            known = image.configure(name, text) or name in ("ADD", "ARG", "COPY", "RUN")
            assert known, f"{dockerfile.name}: {name} is not known here; teach tests/containers/in_chroot.py"
    return images


def start(image, words, *, env=None, user=None, mounts=(), read_only=False, locked=False, limit_s=60):
    """Runs words in the image and returns the finished process. mounts: (source, path, options of mount(8))."""
    env = image.env if env is None else env
    uid, gid = (user or image.user).split(":")
    root = shlex.quote(str(image.root))
    script = ["set -e", f"mount --bind {root} {root}", f"cd {root}"]
    script += ["mount -t proc proc proc", "mount --rbind /dev dev"]
    for source, path, options in mounts:
        target = image.root / path.lstrip("/")
        if Path(source).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.touch()
        script.append(f"mount {options} {shlex.quote(str(source))} {shlex.quote(str(target))}")
    if read_only:
        script.append(f"mount -o remount,ro,bind {root}")
    identity = [f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    if locked:
        identity += ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    variables = [f"{name}={value}" for name, value in env.items()]
    inner = ["chroot", ".", "setpriv", *identity, "env", "-i", "-C", image.folder, *variables, *words]
    script.append("exec " + shlex.join(inner))
    outer = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c"]
    clean = {"PATH": PATH}
    return subprocess.run(
        [*outer, "\n".join(script)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=limit_s, env=clean,
    )


def said(process):
    return f"status {process.returncode}: {process.stdout.strip()[-1500:]}"


class Engine:
    """Builds images and runs containers below one folder."""

    def __init__(self, folder, arguments):
        self.folder, self.arguments = folder, arguments
        self.release = Path(arguments.target) / "release"
        self.images = {}
        for name in BASES:
            self.images[name] = self.unpack(name)

    def new_root(self, name):
        return self.folder / re.sub(r"\W", "-", name)

    def unpack(self, name):
        root = self.new_root(name)
        root.mkdir()
        subprocess.run(["tar", "-C", root, "-xf", self.arguments.base], check=True)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        # As in Debian's images: dpkg need not wait for the disk.
        (root / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")
        image = Image(root)
        image.history = [name, str(os.stat(self.arguments.base).st_mtime)]
        if name.startswith("rust:") and self.arguments.full:
            packages = "ca-certificates gcc libc6-dev"
            self.run(image, f"apt-get update -q && apt-get install -q -y --no-install-recommends {packages}")
            image.env |= {"PATH": f"{TOOLCHAIN}/bin:{PATH}", "CARGO_HOME": "/usr/local/cargo"}
        return image

    def build(self, dockerfile, context, tags):
        """Builds every stage; tags: stage -> the name that its comment asks for."""
        for name, text in instructions(dockerfile):
            if name == "FROM":
                parent, stage = parent_and_stage(text)
                origin = self.images[parent]
                image = Image(self.new_root(f"{dockerfile.name}-{stage}"), origin)
                subprocess.run(["cp", "-a", "--reflink=auto", origin.root, image.root], check=True)
                self.images[stage] = self.images[tags.get(stage, stage)] = image
            elif name == "RUN":
                self.layer(image, text)
            elif name == "COPY":
                image.history = None
                self.copy(image, context, text.split())
            elif name == "ARG":
                assert text == "TARGETARCH", text
            elif name == "ADD":
                image.history = None
                url, destination = text.replace("${TARGETARCH}", "amd64").split()
                shutil.copy(self.release_file(url), image.inside(destination))
            elif image.configure(name, text):
                image.inside(".").mkdir(parents=True, exist_ok=True)  # WORKDIR makes the folder
            else:
                raise AssertionError(f"{dockerfile.name}: {name} is not known here; teach tests/containers/in_chroot.py")

    def layer(self, image, text):
        """RUN, or the layer kept from an earlier run of the same text on the same system, as an engine keeps it."""
        if image.history is None or image.root.name.endswith("-build"):
            self.run(image, text)
            return
        image.history.append(text)
        key = hashlib.sha256("\n".join(image.history).encode()).hexdigest()[:16]
        kept = Path(self.arguments.archives).parent / f"layer-{key}.tar"
        if kept.exists():
            print(f"  kept from an earlier run: {text}")
            shutil.rmtree(image.root)
            image.root.mkdir()
            subprocess.run(["tar", "-C", image.root, "-xf", kept], check=True)
            return
        self.run(image, text)
        new = kept.with_suffix(".new")
        subprocess.run(["tar", "-C", image.root, "--one-file-system", "-cf", new, "."], check=True)
        new.rename(kept)

    def run(self, image, text):
        full, mounts = self.arguments.full, [(self.arguments.archives, "/var/cache/apt/archives", "--bind")]
        if text.startswith("make ") and not full:
            # The same make, outside, with the existing build.
            print(f"  outside, from what is built already: {text}")
            assert re.search(r"DESTDIR=/out\b", text), text
            outside = text.replace("DESTDIR=/out", f"DESTDIR={image.root}/out")
            environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
            environment["CARGO_TARGET_DIR"] = self.arguments.target
            subprocess.run(outside, shell=True, check=True, cwd=SOURCES, env=environment)
            return
        if text.startswith("make "):
            sysroot = subprocess.check_output(["rustc", "--print", "sysroot"], text=True).strip()
            mounts.append((sysroot, TOOLCHAIN, "--bind"))
            # The certificates that this machine trusts on the way to crates.io.
            certificates = "/etc/ssl/certs/ca-certificates.crt"
            mounts.append((certificates, certificates, "--bind"))
        elif image.root.name.endswith("-build") and not full:
            print("  simulated (apt-get -s), since nothing is compiled in there without FULL=1:")
            text = text.replace("apt-get install", "apt-get install -s")
        print(f"  {text}", flush=True)
        env = image.env | {"DEBIAN_FRONTEND": "noninteractive"}
        process = start(image, ["sh", "-c", text], env=env, mounts=mounts, limit_s=LIMIT_S[full])
        assert process.returncode == 0, f"RUN {text}: {said(process)}"

    def release_file(self, url):
        """The file of a release that has this address: made here, as scripts/dist.sh makes it."""
        file = self.folder / "release" / url.rpartition("/")[2]
        if not file.exists():
            subprocess.run(["scripts/deb.sh", self.release, file.parent], check=True, cwd=SOURCES, stdout=subprocess.DEVNULL)
        return file

    def copy(self, image, context, words):
        origin = context
        if words[0].startswith("--from="):
            origin = self.images[words.pop(0).removeprefix("--from=")].root
        source, destination = words
        target = image.inside(destination)
        if origin == context:
            # As .dockerignore leaves it: only files that git knows. Only --full compiles it.
            if not self.arguments.full:
                return
            target.mkdir(parents=True, exist_ok=True)
            listed = subprocess.run(["git", "ls-files", "-z"], cwd=context, check=True, stdout=subprocess.PIPE)
            files = os.fsdecode(listed.stdout).split("\0")[:-1]
            subprocess.run(["cp", "--parents", "-t", target, *files], cwd=context, check=True)
            return
        file = origin / source.lstrip("/")
        if file.is_dir():
            subprocess.run(["cp", "-a", f"{file}/.", target], check=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)

    def contain(self, image, words, *, env=None, mounts=(), **options):
        """Runs words as a container's process, under the runtime's seccomp profile."""
        mounts = [(self.release / "anyring", "/run/deny", "--bind"), *mounts]
        # The profile is installed before LD_PRELOAD takes effect, as by an engine.
        env = image.env if env is None else env
        variables = [f"{name}={value}" for name, value in env.items()]
        deny = ["/run/deny", "deny", "--profile", "docker", "--", "env", *variables]
        return start(image, [*deny, *words], env={"PATH": PATH}, mounts=mounts, **options)

    def docker_run(self, name, env=None):
        image = self.images[name]
        return self.contain(image, image.entrypoint + image.command, env=image.env | (env or {}))

    def completions(self, file):
        """Returns the counts of `anyring stats` from a counters file, by opcode."""
        words = [self.release / "anyring", "stats", "--json", file]
        text = subprocess.check_output(words, text=True)
        return {opcode: sum(paths.values()) for opcode, paths in json.loads(text)["completions"].items()}


class Pod:
    """A pod's volumes and containers, as kubernetes.yaml declares them. An unknown key is an error."""

    def __init__(self, file, engine):
        import yaml  # here, so that the rest of this file needs nothing but Python

        pod = yaml.safe_load(file.read_text())
        assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod"), pod
        self.spec, self.engine = pod["spec"], engine
        self.only(self.spec, "restartPolicy", "securityContext", "initContainers", "containers", "volumes")
        context = self.spec["securityContext"]
        self.only(context, "runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "seccompProfile")
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, context
        assert context["runAsNonRoot"] and context["runAsUser"] != 0, context
        self.user = f"{context['runAsUser']}:{context['runAsGroup']}"
        self.volumes = {}
        for volume in self.spec["volumes"]:
            self.only(volume, "name", "emptyDir")
            self.only(volume["emptyDir"], "sizeLimit")
            folder = engine.folder / f"volume-{volume['name']}"
            folder.mkdir()
            size = volume["emptyDir"]["sizeLimit"].removesuffix("i")
            options = f"size={size},mode=2775,gid={context['fsGroup']}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
            self.volumes[volume["name"]] = folder

    @staticmethod
    def only(mapping, *known):
        unknown = set(mapping) - set(known)
        assert not unknown, f"kubernetes.yaml: {unknown} not known here; teach tests/containers/in_chroot.py"

    def start(self, container, words=None, env=None):
        self.only(container, "name", "image", "command", "env", "volumeMounts", "securityContext", "resources")
        context = container["securityContext"]
        self.only(context, "readOnlyRootFilesystem", "allowPrivilegeEscalation", "capabilities")
        assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}, context
        mounts = []
        for mount in container["volumeMounts"]:
            self.only(mount, "name", "mountPath", "readOnly")
            options = "--bind -o ro" if mount.get("readOnly") else "--bind"
            mounts.append((self.volumes[mount["name"]], mount["mountPath"], options))
        image = self.engine.images[container["image"]]
        variables = image.env | {pair["name"]: pair["value"] for pair in container.get("env", [])} | (env or {})
        read_only = context["readOnlyRootFilesystem"]
        isolation = {"user": self.user, "mounts": mounts, "read_only": read_only, "locked": True}
        return self.engine.contain(image, words or container["command"], env=variables, **isolation)


def dockerfile(name, context, tags):
    return lambda engine: engine.build(PACKAGING / name, context, tags)


def doctor_in_the_image(engine):
    process = engine.docker_run("anyring:0.1.0")
    assert process.returncode == 0 and "under `anyring run`" in process.stdout, said(process)


def without_anyring_the_example_fails(engine):
    process = engine.docker_run("fio:plain")
    assert process.returncode != 0 and "Operation not permitted" in process.stdout, said(process)


def example(stage):
    def served(engine):
        counters = "/tmp/counters"
        process = engine.docker_run(stage, {"ANYRING_STATS": counters})
        check_fio(engine, process, engine.images[stage].root / counters.lstrip("/"))
    return served


def check_fio(engine, process, counters):
    assert process.returncode == 0 and "err= 0" in process.stdout, said(process)
    done = engine.completions(counters)
    # 16 MB in blocks of 4 kB, each written and read back.
    assert done.get("READ", 0) >= 4096 and done.get("WRITE", 0) >= 4096, done


def pod(engine):
    pod = Pod(PACKAGING / "kubernetes.yaml", engine)
    [program] = pod.spec["containers"]
    # The environment is the one that the file asks for.
    probe = "id -u; grep -E '^(NoNewPrivs|Seccomp|CapBnd):' /proc/self/status; touch /etc/x; touch /anyring/x"
    process = pod.start(program, ["sh", "-c", probe], {"LD_PRELOAD": ""})
    lines = process.stdout.split("\n")
    assert lines[0] == str(pod.spec["securityContext"]["runAsUser"]), said(process)
    for line in ("NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000000"):
        assert line in lines, said(process)
    assert process.stdout.count("Read-only file system") == 2, said(process)
    # Without the init container the loader finds no library, and fio no io_uring.
    process = pod.start(program)
    assert process.returncode != 0 and "cannot be preloaded" in process.stdout, said(process)
    for container in pod.spec["initContainers"]:
        process = pod.start(container)
        assert process.returncode == 0, said(process)
    process = pod.start(program, env={"ANYRING_STATS": "/data/counters"})
    check_fio(engine, process, pod.volumes["data"] / "counters")


def main():
    parser = argparse.ArgumentParser()
    for name in ("target", "base", "archives"):
        parser.add_argument(name)
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    failed = passed = 0
    where = os.environ.get("TMPDIR", "/var/tmp")
    with tempfile.TemporaryDirectory(prefix="anyring-containers-", dir=where) as folder:
        # The pod's volumes are mounted in a namespace of this process's own, which the caller made.
        engine = Engine(Path(folder), arguments)
        tests = [
            ("Dockerfile.release builds", dockerfile("Dockerfile.release", PACKAGING, {"release": "anyring:0.1.0"})),
            ("doctor, the release image's command, finds that programs are served", doctor_in_the_image),
            ("Dockerfile builds", dockerfile("Dockerfile", SOURCES, {"anyring": "anyring:0.1.0"})),
            ("Dockerfile.example builds", dockerfile("Dockerfile.example", PACKAGING, {"fio": "fio:plain"})),
            ("doctor, the built image's command, finds that programs are served", doctor_in_the_image),
            ("fio without anyring fails in a container", without_anyring_the_example_fails),
            ("fio with the preloaded library is served", example("preload")),
            ("fio below the entry point `anyring run` is served", example("run")),
            ("fio below one file, as a guest, is served", example("file")),
            ("the pod: init container, then fio from a read-only root, not root", pod),
        ]
        for name, test in tests:
            print(f"{name} ...", flush=True)
            try:
                test(engine)
            except Exception as error:  # the next test runs nevertheless
                failed += 1
                where = traceback.extract_tb(error.__traceback__)[-1]
                print(f"FAILED: {name} (line {where.lineno}): {error!r}")
            else:
                passed += 1
                print(f"ok: {name}", flush=True)
        for folder in Path(folder).glob("volume-*"):
            subprocess.run(["umount", folder], check=True)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
