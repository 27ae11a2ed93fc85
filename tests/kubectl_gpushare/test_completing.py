from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kubectl_gpushare import cli
from kubectl_gpushare.commands.completion import PROGRAM
from tests.kubectl_gpushare.conftest import SECONDS, Plugin, environment

Complete = Callable[..., list[str]]


@pytest.fixture
def complete(programs: Path) -> Complete:
    """Return the lines that `kubectl_complete-gpushare WORDS` prints."""

    def run(*words: str | Path, **variables: str) -> list[str]:
        command = [str(programs / "kubectl_complete-gpushare"), *map(str, words)]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=True, env=environment(**variables)
        )
        assert result.stderr == ""
        return result.stdout.splitlines()

    return run


def names(lines: list[str]) -> list[str]:
    return [line.partition("\t")[0] for line in lines[:-1]]


@pytest.mark.slow
def test_verbs_are_completed_with_help(complete: Complete) -> None:
    lines = complete("")
    assert names(lines) == list(cli.VERBS)
    assert lines[0].startswith("top\tShow")
    assert lines[-1] == ":4"
    assert names(complete("des")) == ["describe"]


@pytest.mark.slow
def test_flags_and_their_values(complete: Complete) -> None:
    assert names(complete("top", "--so")) == ["--sort-by"]
    assert names(complete("top", "-o", "")) == ["table", "wide", "json", "yaml", "csv", "name"]


def test_files_are_left_to_the_shell(complete: Complete) -> None:
    assert complete("top", "--from", "") == [":0"]


@pytest.mark.slow
def test_types_are_completed_before_names(complete: Complete, saved: Path) -> None:
    assert names(complete("top", "")) == ["gpus", "nodes", "pods"]
    assert names(complete("describe", "")) == ["gpu", "node", "pod"]
    assert names(complete("describe", "--from", saved, "node", "")) == ["gpu-1", "gpu-2", "gpu-10"]
    assert names(complete("describe", "--from", saved, "node", "gpu-1", "gpu-1")) == ["gpu-10"]
    assert names(complete("describe", "--from", saved, "pods", "-n", "ml", "l")) == ["llm", "lost"]


@pytest.mark.slow
def test_names_of_nodes_pods_and_configurations(complete: Complete, saved: Path, tmp_path: Path) -> None:
    assert names(complete("audit", "--from", saved, "gpu-1")) == ["gpu-1", "gpu-10"]
    assert names(complete("rightsize", "--from", saved, "-n", "ml", "t")) == ["trainer"]
    assert names(complete("fit", "--policy", "")) == ["fragmentation", "pack", "spread"]
    path = tmp_path / "map.yaml"
    path.write_text("kind: ConfigMap\nmetadata: {name: gpushare-config}\ndata: {gpus-of-mine: ''}\n")
    assert names(complete("config", "show", "--from", saved, "--from", path, "gpu")) == [
        "gpu-1",
        "gpu-2",
        "gpu-10",
        "gpus-of-mine",
    ]


@pytest.mark.slow
def test_gpus_are_completed_with_free_capacity(complete: Complete, saved: Path) -> None:
    lines = complete("describe", "--from", saved, "gpu", "gpu-1/")
    assert lines[0] == "gpu-1/0\tA100-SXM4-80GB free 0.25+20Gi"


@pytest.mark.slow
def test_unreachable_cluster_gives_no_candidates_and_no_output(complete: Complete) -> None:
    assert complete("describe", "node", "", KUBECTL_PATH="/nonexistent") == [":4"]
    assert complete("top", "--from", "/nonexistent", "nodes", "") == [":4"]


@pytest.mark.slow
def test_completion_program_is_installed_next_to_krews_link(plugin: Plugin, programs: Path, saved: Path) -> None:
    path = programs / "kubectl_complete-gpushare"
    path.unlink()
    path.symlink_to("/nonexistent/of/an/older/version")
    with_it = f"{programs}:/usr/bin:/bin"
    ended = plugin("completion", "--to", programs, PATH=with_it)
    assert (ended.code, ended.out, ended.err) == (0, f"{path} written\n", "")
    ran = subprocess.run(
        [path, "describe", "--from", saved, "node", "gpu-1"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
        env=environment(PATH=with_it),
    )
    assert ran.stdout.splitlines() == ["gpu-1", "gpu-10", ":4"]


def test_completion_prints_the_program_or_an_error(plugin: Plugin, tmp_path: Path) -> None:
    assert plugin("completion").out == PROGRAM
    assert plugin("completion", "--to", tmp_path).err == (
        f"warning: {tmp_path} is not on PATH, so that kubectl does not find it there\n"
    )
    ended = plugin("completion", "--to", tmp_path / "nowhere")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"error: {tmp_path}/nowhere/kubectl_complete-gpushare cannot be written (No such file")


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_foreign_file_is_never_overwritten(plugin: Plugin, tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "kubectl_complete-gpushare", tmp_path / "other"
    other.write_text("mine")
    if kind == "file":
        path.write_text("mine")
    elif kind == "link":
        path.symlink_to(other)
    else:
        path.mkdir()
    ended = plugin("completion", "--to", tmp_path)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        f"error: {path} is there already, and not by this command: if pip, pipx or uv has put it there, nothing more is "
        "needed; else remove it first\n"
    )
    assert other.read_text() == "mine"
    assert path.is_dir() or path.read_text() == "mine"


def test_own_program_is_rewritten_without_leftovers(plugin: Plugin, tmp_path: Path) -> None:
    for _ in range(2):
        assert plugin("completion", "--to", tmp_path).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["kubectl_complete-gpushare"]
    assert (tmp_path / "kubectl_complete-gpushare").stat().st_mode & 0o777 == 0o755
