"""Each released package installs the plugin alone: the wheel by pip and by uv, the source archive, krew's archive."""

from __future__ import annotations

import dataclasses
import email.parser
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy
import pytest

import gpushare
from kubectl_gpushare import cli
from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.conftest import HIDDEN, ROOT

pytestmark = pytest.mark.slow

SECONDS = 240.0
PYTHON = sys.executable
SAMPLE_POD = ROOT / "config" / "samples" / "half-gpu.yaml"


@dataclasses.dataclass(frozen=True)
class Installed:
    """Programs in a folder, run by a user who has nothing else of gpushare."""

    folder: Path

    def __call__(self, program: str, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if key not in {*HIDDEN, "PYTHONPATH", "VIRTUAL_ENV"}}
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        return run(program, *words, environment={**kept, "PATH": path, "KUBECONFIG": "/nonexistent"}, code=code)


def run(
    *words: str | Path, environment: dict[str, str] | None = None, cwd: Path | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    command = [str(word) for word in words]
    if environment is not None:
        command[0] = shutil.which(command[0], path=environment["PATH"]) or command[0]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment, cwd=cwd or Path("/")
    )
    assert ended.returncode == code, f"{command}: {ended.stdout}{ended.stderr}"
    return ended


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and the source archive into a folder."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module", params=["pip", "uv"])
def installed(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel into a new environment."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "pip":
        run(sys.executable, "-m", "venv", folder)
        run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", wheel)
        return Installed(folder / "bin")
    places = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    uv = Path(sys.executable).parent / "uv"
    run(uv, "tool", "install", "--quiet", "--python", sys.executable, wheel, environment={**os.environ, **places})
    return Installed(folder / "bin")


def check(plugin: Installed, saved: Path) -> None:
    """Run every verb that needs no cluster, once."""
    run_reading_verbs(plugin, saved)
    assert "Fits:          yes" in plugin("kubectl-gpushare", "fit", "--request", "0.1", "--from", saved).stdout
    simulated = plugin(
        "kubectl-gpushare", "simulate", "-f", SAMPLE_POD, "--repeat", "9", "--nodes", "1x4", "-o", "json"
    )
    assert json.loads(simulated.stdout)["waitingAtTheEnd"] == 1
    assert "PodReasons" in plugin("kubectl-gpushare", "why", "ml/waiting", "-o", "json", "--from", saved).stdout


def run_reading_verbs(plugin: Installed, saved: Path) -> None:
    """Run those of them that plan nothing."""
    assert plugin("kubectl-gpushare", "version").stdout == f"kubectl-gpushare v{gpushare.__version__}\n"
    golden = Path(__file__).parent / "golden" / "top-gpus-pipe.txt"
    assert plugin("kubectl-gpushare", "top", "--from", saved).stdout == golden.read_text()
    completed = plugin("kubectl_complete-gpushare", "describe", "--from", saved, "node", "gpu-1")
    assert completed.stdout.splitlines() == ["gpu-1", "gpu-10", ":4"]


def test_wheel_alone_installs_the_plugin(installed: Installed, saved: Path) -> None:
    check(installed, saved)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH to find the plugin")
def test_kubectl_finds_the_installed_plugin(installed: Installed, saved: Path) -> None:
    assert installed("kubectl", "gpushare", "version").stdout == f"kubectl-gpushare v{gpushare.__version__}\n"
    assert installed("kubectl", "gpushare", "top", "-o", "name", "--from", saved).stdout.startswith(
        "gpu.gpushare.io/gpu-1/0"
    )
    completed = installed("kubectl", "__complete", "gpushare", "top", "").stdout
    assert completed.splitlines() == ["gpus", "nodes", "pods", ":4"]


def test_the_wheel_carries_the_domain_and_the_plugin(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        information = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.parser.Parser().parsestr(archive.read(information).decode())
        entries = archive.read(information.replace("METADATA", "entry_points.txt")).decode()
    assert {name.partition("/")[0] for name in names} == {"gpushare", "kubectl_gpushare", information.partition("/")[0]}
    assert metadata["Version"] == gpushare.__version__
    needed = {text.partition(">")[0] for text in metadata.get_all("Requires-Dist", ()) if "extra ==" not in text}
    assert needed == {"click", "numpy", "pyyaml", "tabulate"}
    assert "kubectl-gpushare = " in entries
    assert "kubectl_complete-gpushare = " in entries
    assert not [name for name in names if "__pycache__" in name]


def test_the_source_archive_builds_the_same_wheel(built: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extraction_filter = lambda member, _: member  # `filter=` exists from Python 3.11.4
        archive.extractall(tmp_path)  # noqa: S202 - our own archive
    source = next(tmp_path.iterdir())
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=source)
    again = next((tmp_path / "again").glob("*.whl"))
    assert again.name == wheel.name
    with zipfile.ZipFile(wheel) as original, zipfile.ZipFile(again) as other:
        assert sorted(original.namelist()) == sorted(other.namelist())


@pytest.fixture
def from_krew(tmp_path: Path) -> Installed:
    """Unpack and link krew's archive as krew does, for a Python without further packages."""
    run(sys.executable, ROOT / "config" / "krew" / "make.py", tmp_path / "dist", "--base=b", "--homepage=h", cwd=ROOT)
    with tarfile.open(next((tmp_path / "dist").glob("*.tar.gz"))) as archive:
        archive.extraction_filter = lambda member, _: member
        archive.extractall(tmp_path / "store")  # noqa: S202
    folder, beside = tmp_path / "bin", tmp_path / "beside"  # python3's environment: empty at first
    folder.mkdir()
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\n[ -d {beside} ] && export PYTHONPATH={beside}\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    for name in ("kubectl-gpushare", "kubectl_complete-gpushare"):
        (folder / name).symlink_to(tmp_path / "store" / "gpushare" / name)
    return Installed(folder)


def test_krews_archive_needs_python_and_numpy_for_planning(from_krew: Installed, tmp_path: Path) -> None:
    saved = sample.save(tmp_path / "cluster.json")
    run_reading_verbs(from_krew, saved)
    for words in (
        ["fit", "--request", "0.1", "--from", saved],
        ["why", "ml/waiting", "--from", saved],
        ["defrag", "--from", saved],
        ["simulate", "-f", SAMPLE_POD, "--nodes", "1x4"],
    ):
        said = from_krew("kubectl-gpushare", *words, code=1).stderr
        assert (
            said == f"error: this verb needs numpy, which {PYTHON} lacks: `{PYTHON} -m pip install numpy` installs it\n"
        )
    for name in ("numpy", "numpy.libs"):
        (tmp_path / "beside" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "beside" / name).symlink_to(Path(numpy.__file__).parents[1] / name)
    check(from_krew, saved)
    for verb in cli.VERBS:
        assert from_krew("kubectl-gpushare", verb, "--help").stdout.startswith(f"Usage: kubectl gpushare {verb}")
