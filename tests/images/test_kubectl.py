"""Which programs the image `plugin` takes as its kubectl."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from config.images import build, contents, kubectl, preloaded
from lab import build as lab_build
from lab import lab_errors, prerequisites
from tests.images.image import Image

SOURCE = "int main(void) { return 0; }\n"


def compiled(path: Path, architecture: str, *flags: str, source: str = SOURCE) -> Path:
    compiler = prerequisites.program(preloaded.COMPILERS[contents.MACHINES[architecture]])
    command = [compiler, *flags, "-x", "c", "-o", str(path), "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def test_each_architecture_gets_its_program(tmp_path: Path) -> None:
    made = {name: compiled(tmp_path / name, name, "-static") for name in contents.MACHINES}
    assert kubectl.choose([*made.values()], [*made]) == made
    with pytest.raises(lab_errors.LabError, match=r"no kubectl for arm64: there is .*amd64 \(amd64\).*KUBECTL="):
        kubectl.choose([made["amd64"]], ["amd64", "arm64"])


def test_a_program_that_would_not_run_in_the_image_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    dispatcher = 'const char *version = "v1.32.4-dispatcher"; ' + SOURCE
    for path, said in (
        (compiled(tmp_path / "dynamic", "amd64"), "is linked dynamically"),
        (compiled(tmp_path / "dispatcher", "amd64", "-static", source=dispatcher), "gcloud's dispatcher"),
        (tmp_path / "script", "is not a program for Linux"),
        (tmp_path / "none", "cannot be read: No such file"),
    ):
        with pytest.raises(lab_errors.LabError, match=f"^kubectl {path} .*{said}.*KUBECTL=PATH"):
            kubectl.choose([path], ["amd64"])


def test_a_missing_kubectl_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(lab_errors.LabError, match=r"^no kubectl on PATH; name one with KUBECTL=PATH$"):
        kubectl.choose([], ["amd64"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_without_a_suitable_kubectl_on_path_the_other_images_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "kubectl"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert set(build.ensure(directory=tmp_path).by_name()) == {"webhook", "agent"}
    assert f"the image plugin is not built: kubectl {script} is not a program for Linux" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_image_has_the_plugin_and_its_kubectl(unpacked: dict[str, Image]) -> None:
    made = unpacked["plugin"]
    assert "--apply" in made.python("-m", "kubectl_gpushare", "defrag", "--help")
    command = [made.root / "usr/bin/kubectl", "version", "--client", "--output=json"]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert shown["clientVersion"]["gitVersion"] == lab_build.version()
