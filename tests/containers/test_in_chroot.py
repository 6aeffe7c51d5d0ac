"""Tests of in_chroot.py's Dockerfile parser, and of the Dockerfiles. Needs no root, no network and no engine."""

import tempfile
import unittest
from pathlib import Path

import in_chroot

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"


def stages(text):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "Dockerfile"
        file.write_text(text)
        return in_chroot.configurations(file)


class Entrypoint(unittest.TestCase):
    def test_clears_the_cmd_that_its_parent_stage_had(self):
        images = stages('FROM x AS a\nCMD ["c"]\nFROM a AS b\nENTRYPOINT ["e"]\n')
        self.assertEqual((images["b"].entrypoint, images["b"].command), (["e"], []))
        self.assertEqual(images["a"].command, ["c"])

    def test_keeps_a_cmd_of_its_own_stage_before_and_after_it(self):
        for own in ('CMD ["own"]\nENTRYPOINT ["e"]', 'ENTRYPOINT ["e"]\nCMD ["own"]'):
            images = stages(f'FROM x AS a\nCMD ["c"]\nFROM a AS b\n{own}\n')
            self.assertEqual((images["b"].entrypoint, images["b"].command), (["e"], ["own"]), own)

    def test_is_inherited_with_its_cmd(self):
        images = stages('FROM x AS a\nENTRYPOINT ["e"]\nCMD ["c"]\nFROM a AS b\nUSER 1:1\nFROM b AS c\nCMD ["d"]\n')
        self.assertEqual((images["b"].entrypoint, images["b"].command), (["e"], ["c"]))
        self.assertEqual((images["c"].entrypoint, images["c"].command), (["e"], ["d"]))


class Ours(unittest.TestCase):
    def test_each_stage_of_the_example_starts_fio(self):
        images = in_chroot.configurations(PACKAGING / "Dockerfile.example")
        self.assertEqual(set(images), {"fio", "preload", "run", "file"})
        plain = images["fio"].command
        self.assertEqual(plain[0], "/usr/bin/fio")
        for stage, entrypoint in [("fio", []), ("preload", []), ("run", ["/usr/bin/anyring", "run", "--"])]:
            self.assertEqual((images[stage].entrypoint, images[stage].command), (entrypoint, plain), stage)

    def test_the_image_starts_doctor_from_sources_and_from_a_release(self):
        for file, stage in [("Dockerfile", "anyring"), ("Dockerfile.release", "release")]:
            image = in_chroot.configurations(PACKAGING / file)[stage]
            self.assertEqual(image.entrypoint + image.command, ["/usr/bin/anyring", "doctor"], file)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed, 0 skipped")
    raise SystemExit(failed != 0)
