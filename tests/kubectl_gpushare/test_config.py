"""`config validate`: what a file does, what in it has no effect, and what an agent would refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kubectl_gpushare.conftest import ROOT, Plugin

SAMPLES = sorted((ROOT / "config" / "samples" / "config").glob("*.yaml"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_is_good_and_nothing_in_it_is_without_effect(plugin: Plugin, path: Path) -> None:
    ended = plugin("config", "validate", path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"{path}: ")


def test_each_entry_of_a_configmap_is_judged_by_itself(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(
        "kind: ConfigMap\ndata:\n  good: |\n    version: v1\n  bad: |\n    version: v1\n    sharing:\n      mps: {}\n"
    )
    ended = plugin("config", "validate", path)
    assert ended.code == 1
    assert ended.out == f"{path}: good: every device whole\n"
    assert ended.err == (
        f"error: {path}: bad: line 3: sharing.mps: no resources specified: list at least one under resources\n"
    )


def test_what_has_no_effect_is_a_warning_and_no_error(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("version: v1\nsharng: {}\nresources: {gpus: [{pattern: '*', name: a}]}\n")
    ended = plugin("config", "validate", path)
    assert (ended.code, ended.err) == (0, f"warning: {path}: line 2: sharng is not known: did you mean sharing?\n")
    assert "resources has no effect" in plugin("config", "validate", "--strict-compatibility", path).err


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("kind: Pod\n", "neither a configuration file nor a ConfigMap"),
        ("kind: ConfigMap\n", "no entry under data"),
        ("kind: ConfigMap\ndata: {a: {version: v1}}\n", "put | after its name"),
        ("flags: {migStrategy: two}", "unknown MIG strategy: two"),
        ("a: [", "line 1: the file is no YAML"),
    ],
)
def test_what_would_be_refused_ends_with_1(plugin: Plugin, tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    ended = plugin("config", "validate", path)
    assert ended.code == 1
    assert part in ended.err
    assert ended.out == ""


def test_a_file_that_is_not_there_is_an_error(plugin: Plugin, tmp_path: Path) -> None:
    ended = plugin("config", "validate", tmp_path / "none.yaml")
    assert ended.code == 1
    assert "cannot be read: No such file or directory" in ended.err


def difference(plugin: Plugin, saved: Path, tmp_path: Path, text: str, *more: str) -> tuple[int, str, str]:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    ended = plugin("config", "diff", "--node", "gpu-1", "-f", path, "--from", saved, *more)
    return ended.code, ended.out, ended.err


def test_a_difference_says_of_each_gpu_what_it_becomes_and_who_is_in_the_way(
    plugin: Plugin, saved: Path, tmp_path: Path
) -> None:
    text = "sharing: {mps: {resources: [{name: gpu, replicas: 2, devices: [0], rename: gpu.mps}]}, fractional: {resources: [{name: gpu}]}}"
    code, out, err = difference(plugin, saved, tmp_path, text)
    assert (code, err) == (0, "")
    first, second, *_ = out.splitlines()
    assert first.startswith("GPU 0 (")
    assert "fractional → mps, 2 × nvidia.com/gpu.mps, once these pods have ended: " in first
    assert second.endswith(": stays fractional")


def test_what_the_node_cannot_be_is_said_and_nothing_else(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    text = "sharing: {mps: {resources: [{name: gpu, replicas: 2, devices: [99]}]}}"
    code, out, err = difference(plugin, saved, tmp_path, text)
    assert (code, out) == (1, "")
    assert "no matching device at index: 99; the node has 0 (GPU-" in err


def test_an_entry_of_a_configmap_is_chosen_by_name(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    text = (ROOT / "config" / "samples" / "config" / "configmap.yaml").read_text()
    assert "stays fractional" in difference(plugin, saved, tmp_path, text)[1]
    assert "→ exclusive, nvidia.com/gpu" in difference(plugin, saved, tmp_path, text, "--entry", "exclusive")[1]
    code, _, err = difference(plugin, saved, tmp_path, text, "--entry", "none")
    assert code == 1
    assert "name one of them with --entry" in err


def test_what_has_no_effect_on_the_node_is_a_warning(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    text = "sharing: {timeSlicing: {resources: [{name: gpus, replicas: 2}]}}"
    code, _, err = difference(plugin, saved, tmp_path, text)
    assert code == 0
    assert err.startswith("warning: sharing.timeSlicing.resources[0] has no effect: this node has no nvidia.com/gpus")
