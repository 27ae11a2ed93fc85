"""The Containerfiles produce the same as `make images`: user, environment, entry point, our packages and wheels."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import gpushare
from config.images import archive, contents, requirements

DIRECTORY = requirements.ROOT / "config" / "images"
BROUGHT = {"python3.11-minimal", "libpython3.11-stdlib", "libstdc++6"}  # the rest of the table are their dependencies


def instructions(name: str) -> list[tuple[str, str]]:
    text = (DIRECTORY / f"Containerfile.{name}").read_text()
    lines = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", text)).splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line.strip()]


def last_stage(name: str) -> list[tuple[str, str]]:
    everything = instructions(name)
    start = max(index for index, (word, _) in enumerate(everything) if word == "FROM")
    return everything[start:]


@pytest.fixture(params=contents.IMAGES, ids=lambda image: image.name)
def image(request: pytest.FixtureRequest) -> contents.Image:
    chosen: contents.Image = request.param
    return chosen


def test_containerfile_settings_equal_the_image(image: contents.Image) -> None:
    built = archive.image(image, "amd64", [], labels={})
    settings = json.loads(built.config)["config"]
    stage = last_stage(image.name)
    values = dict(stage)
    assert values["USER"] == settings["User"]
    assert values["WORKDIR"] == settings["WorkingDir"]
    assert values["STOPSIGNAL"] == settings["StopSignal"]
    assert json.loads(values["ENTRYPOINT"]) == settings["Entrypoint"]
    assert shlex.split(values["ENV"]) == [entry for entry in settings["Env"] if not entry.startswith("PATH=")]
    labels = dict(pair.split("=", 1) for pair in shlex.split(values["LABEL"]))
    assert labels["org.opencontainers.image.title"] == image.title
    assert f"VERSION={gpushare.__version__} " in (DIRECTORY / f"Containerfile.{image.name}").read_text()


def test_copied_files_equal_those_of_the_image(image: contents.Image) -> None:
    copied = [words.split() for word, words in instructions(image.name) if word == "COPY"]
    ours = {source for source, target in (words for words in copied if len(words) == 2) if target == f"/site/{source}"}
    assert ours == set(image.packages)
    for words in copied:
        for source in words[:-1]:
            assert source.startswith(("--from=", "/", "--chmod=", "${")) or (requirements.ROOT / source).exists()
    assert (["--from=library", "/library", f"/{contents.LIBRARIES}"] in copied) == image.has_library
    assert (["--chmod=0755", "${KUBECTL}", "/usr/bin/kubectl"] in copied) == image.has_kubectl
    assert ["--from=wheels", "/site", f"/{contents.SITE}"] in copied


def test_debian_packages_are_those_of_the_table(image: contents.Image) -> None:
    (installing,) = [words for word, words in last_stage(image.name) if word == "RUN" and "apt-get install" in words]
    named = re.search(r"apt-get install --yes --no-install-recommends ([^&]+)&&", installing)
    assert named is not None
    assert set(named[1].split()) == BROUGHT <= set(contents.PACKAGES)


def test_the_wheels_have_the_hashes_of_the_image(image: contents.Image) -> None:
    # In the Containerfile, Debian's Python runs this without any other package.
    command = [sys.executable, "-I", "-S", "-c", "import runpy, sys; sys.path.insert(0, '.'); sys.argv = ['', %r]; "]
    command[-1] = command[-1] % image.name + "runpy.run_module('config.images.requirements', run_name='__main__')"
    printed = subprocess.run([*command], cwd=requirements.ROOT, capture_output=True, text=True, check=True).stdout
    pinned = re.findall(r"^(\S+)==.*\\\n    --hash=sha256:[0-9a-f]{64}", printed, re.MULTILINE)
    assert set(pinned) == set(image.wheels)


def test_a_wheel_missing_from_the_lock_is_named(image: contents.Image, tmp_path: Path) -> None:
    lock = requirements.ROOT / "requirements.lock"
    (tmp_path / "lock").write_text(re.sub(r"(?ms)^pyyaml==.*?(?=^\S)", "", lock.read_text()))
    with pytest.raises(ValueError, match=r"has no pyyaml for the image .*correct config/images/contents\.py"):
        requirements.of(image, tmp_path / "lock")
