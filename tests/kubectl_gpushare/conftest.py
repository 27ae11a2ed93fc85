"""The plugin as its users run it: a process of its own, found by kubectl on PATH."""

from __future__ import annotations

import dataclasses
import gc
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubectl_gpushare import cli
from tests.kubectl_gpushare import sample

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
HIDDEN = frozenset({"KUBECONFIG", "KUBECTL_PATH", "NO_COLOR"})


@dataclasses.dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Plugin = Callable[..., Ended]


def environment(**more: str) -> dict[str, str]:
    """Ours, without what would lead to somebody's cluster or change the output."""
    kept = {key: value for key, value in os.environ.items() if key not in HIDDEN}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "KUBECONFIG": "/nonexistent", **more}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Plugin]:
    """Runs the plugin with these arguments, in this process: starting one costs more than most commands do."""
    for key in HIDDEN:
        monkeypatch.delenv(key, raising=False)
    for key, value in environment().items():
        monkeypatch.setenv(key, value)

    def run(*arguments: str | Path, input: str = "", **variables: str) -> Ended:  # noqa: A002
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(input.encode())))
            for key, value in variables.items():
                patch.setenv(key, value)
            code = cli.main([*map(str, arguments)])
        said = capfd.readouterr()
        return Ended(code, said.out, said.err)

    yield run
    gc.enable()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The sample cluster in a file."""
    return sample.save(tmp_path / "cluster.json")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the two programs of the plugin, as an installation puts them on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, module in (("kubectl-gpushare", "cli"), ("kubectl_complete-gpushare", "completion")):
        program = folder / name
        program.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            f"from kubectl_gpushare.{module} import main\nsys.exit(main())\n"
        )
        program.chmod(0o755)
    return folder


@pytest.fixture
def fake_kubectl(tmp_path: Path) -> Callable[[str], str]:
    """Makes a program that does as a shell script says: for what a real cluster cannot be made to say."""

    def make(script: str) -> str:
        program = tmp_path / "fake-kubectl"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return str(program)

    return make
