#!/usr/bin/env python3
"""Runs the steps of action.yml and of packaging/ci/gitlab.yml as a runner would, where io_uring is denied.

usage: test_ci.py RELEASE OUT CLIENT

RELEASE holds what `make build` built, OUT what scripts/dist.sh packed of it, CLIENT is a program that uses io_uring. What a step asks
for that is not known here fails the test.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
RELEASE, OUT, CLIENT = (Path(word).resolve() for word in sys.argv[1:4])
# Makes a ring and submits nothing, so that no seed can disturb it.
RING_ONLY = "python3 -c 'import ctypes; print(ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)))'"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def denied(words, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": 300, **options}
    return subprocess.run([RELEASE / "anyring", "deny", "--", *words], **options)


class Runner:
    """GitHub's runner for one composite action: inputs, conditions, and the files by which steps report to it."""

    def __init__(self, folder, **inputs):
        self.folder = folder
        self.action = yaml.safe_load((ROOT / "action.yml").read_text())
        unknown = set(inputs) - set(self.action["inputs"])
        assert not unknown, f"no such inputs: {unknown}"
        self.inputs = {name: given["default"] for name, given in self.action["inputs"].items()} | inputs
        self.path, self.outputs, self.log = [], {}, ""

    def expand(self, text):
        def value(match):
            kind, name = match[1].split(".", 1)
            if kind == "inputs":
                return self.inputs[name]
            assert match[1] == "github.action_path", f"{match[0]} not known here"
            return str(ROOT)

        return re.sub(r"\$\{\{ *([^ }]+) *\}\}", value, text)

    def wanted(self, step):
        if "if" not in step:
            return True
        name = re.fullmatch(r"inputs\.(\w+) != ''", step["if"])[1]
        return self.inputs[name] != ""

    def run(self):
        """The exit status of the first step that fails, as the job's."""
        assert self.action["runs"]["using"] == "composite"
        for step in filter(self.wanted, self.action["runs"]["steps"]):
            assert set(step) <= {"id", "if", "shell", "env", "run"} and step["shell"] == "bash", step
            assert "${{" not in step["run"], "an input in a script would be code"
            script = self.folder / "step.sh"
            script.write_text(step["run"])
            told = {name: self.folder / name for name in ("GITHUB_PATH", "GITHUB_OUTPUT")}
            for file in told.values():
                file.write_text("")
            env = {name: self.expand(text) for name, text in step.get("env", {}).items()}
            env |= {name: str(file) for name, file in told.items()}
            env |= {"PATH": ":".join([*reversed(self.path), PATH]), "HOME": str(self.folder), "RUNNER_TEMP": str(self.folder)}
            process = denied(["bash", "--noprofile", "--norc", "-eo", "pipefail", script], env=env, cwd=self.folder)
            self.log += process.stdout
            if process.returncode != 0:
                return process.returncode
            self.path += told["GITHUB_PATH"].read_text().split("\n")[:-1]
            self.outputs |= dict(line.split("=", 1) for line in told["GITHUB_OUTPUT"].read_text().split("\n")[:-1])
        return 0


def run_is_served(folder):
    assert denied([CLIENT, "100"]).returncode != 0, "the client works without anyring"
    # Quotes of both kinds, and a line that fails unless each is a command.
    runner = Runner(folder, url=OUT.as_uri(), run=f"echo 'it'\"s\" two lines\n{CLIENT} 100")
    assert runner.run() == 0, runner.log
    assert "its two lines" in runner.log and "verified" in runner.log, runner.log
    assert Path(runner.outputs["library"]).is_file(), runner.outputs


def the_lines_of_the_page_work(folder):
    """Those that docs/release.md gives for a workflow, with fewer seeds."""
    page = (ROOT / "docs/release.md").read_text().split("## In CI", 1)[1]
    [step] = yaml.safe_load(page.split("\n```\n")[1])
    assert set(step) == {"uses", "with"} and step["uses"].startswith("anyring/anyring@v"), step
    test = folder / "mytest"
    test.write_text(f"#!/bin/sh\n{RING_ONLY}\n")
    test.chmod(0o755)
    inputs = {name: str(value) for name, value in step["with"].items()} | {"runs": "3"}
    runner = Runner(folder, url=OUT.as_uri(), **inputs)
    assert runner.run() == 0 and (folder / "anyring-chaos.xml").is_file(), runner.log


def what_fails_fails(folder):
    runner = Runner(folder, url=OUT.as_uri(), run="false\ntrue")
    assert runner.run() == 1, runner.log


def seeds_that_fail_are_annotations(folder):
    runner = Runner(folder, url=OUT.as_uri(), chaos=f"{CLIENT} 100; exit 3", runs="12")
    assert runner.run() != 0, runner.log
    annotations = re.findall(r"^::error title=anyring chaos%3A seed \d+::.+$", runner.log, re.MULTILINE)
    assert len(annotations) == 10 and "::notice::2 more" in runner.log, runner.log
    assert (folder / "anyring-chaos.xml").is_file()


def seeds_that_hold_are_none(folder):
    runner = Runner(folder, url=OUT.as_uri(), chaos=RING_ONLY, runs="3", junit="report.xml")
    assert runner.run() == 0, runner.log
    assert "::error" not in runner.log and (folder / "report.xml").is_file(), runner.log


def a_changed_file_is_refused(folder):
    changed = folder / "changed"
    changed.mkdir()
    for file in OUT.iterdir():
        if file.is_file():
            (changed / file.name).write_bytes(file.read_bytes())
    [tarball] = changed.glob("anyring-*-linux.tar.gz")
    tarball.write_bytes(tarball.read_bytes() + b"\0")
    runner = Runner(folder, url=changed.as_uri(), run="true")
    assert runner.run() != 0 and not runner.path, runner.log
    assert gitlab(folder, "true", url=changed.as_uri()).returncode != 0


def another_processor_gets_its_own_file(folder):
    """A machine whose uname(1) says aarch64, and a release with this machine's programs under that name."""
    [here] = OUT.glob("anyring-*-linux.tar.gz")
    there = here.name.replace(platform.machine(), "aarch64")
    release, bin = folder / "release", folder / "bin"
    release.mkdir()
    bin.mkdir()
    rename = f"s/{platform.machine()}-linux/aarch64-linux/"
    script = f"tar -xzf {here} --transform {rename} && tar -czf release/{there} anyring-* && cd release && sha256sum {there} >SHA256SUMS"
    subprocess.run(["sh", "-ec", script], cwd=folder, check=True)
    (bin / "uname").write_text("#!/bin/sh\n/bin/uname \"$@\" | sed s/" + platform.machine() + "/aarch64/\n")
    (bin / "uname").chmod(0o755)
    runner = Runner(folder, url=release.as_uri(), run=f"{CLIENT} 100")
    runner.path.append(str(bin))
    assert runner.run() == 0 and "aarch64-linux" in runner.outputs["library"], runner.log
    process = gitlab(folder, "command -v anyring", url=release.as_uri(), PATH=f"{bin}:{PATH}")
    assert process.returncode == 0 and "aarch64-linux/bin/anyring" in process.stdout, process.stdout


def gitlab(folder, script, job=".anyring", url=None, **variables):
    """A job that extends one of the template, in the shell of an image, as GitLab's runner starts it."""
    template = yaml.safe_load((ROOT / "packaging/ci/gitlab.yml").read_text())
    base = template[".anyring"]
    given = base["variables"] | template[job].get("variables", {}) | {"ANYRING_URL": url or OUT.as_uri()} | variables
    lines = [*base["before_script"], *(template[job].get("script") or [script])]
    return denied(["sh", "-e", "-c", "\n".join(lines)], env={"PATH": PATH, **given}, cwd=folder)


def gitlab_serves(folder):
    process = gitlab(folder, f"anyring run -- {CLIENT} 100")
    assert process.returncode == 0 and "verified" in process.stdout, process.stdout


def gitlab_tries_chaos(folder):
    process = gitlab(folder, None, ".anyring-chaos", ANYRING_PROGRAM=RING_ONLY, ANYRING_RUNS="3")
    assert process.returncode == 0 and (folder / "anyring-chaos.xml").is_file(), process.stdout
    assert gitlab(folder, None, ".anyring-chaos", ANYRING_PROGRAM="exit 3", ANYRING_RUNS="3").returncode != 0


def main():
    tests = [
        ("the lines of docs/release.md work", the_lines_of_the_page_work),
        ("the action's `run` is served", run_is_served),
        ("what fails in `run` fails the job", what_fails_fails),
        ("seeds that fail become annotations", seeds_that_fail_are_annotations),
        ("seeds that hold become none", seeds_that_hold_are_none),
        ("a file that is not the release's is refused", a_changed_file_is_refused),
        ("a machine with another processor gets the file for it", another_processor_gets_its_own_file),
        ("GitLab's template serves", gitlab_serves),
        ("GitLab's template tries chaos", gitlab_tries_chaos),
    ]
    failed = 0
    for name, test in tests:
        with tempfile.TemporaryDirectory(prefix="anyring-ci-", dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
            try:
                test(Path(folder))
                print(f"ok: {name}")
            except Exception as error:  # the next test runs nevertheless
                failed += 1
                print(f"FAILED: {name}: {error!r}")
    print(f"{len(tests) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
