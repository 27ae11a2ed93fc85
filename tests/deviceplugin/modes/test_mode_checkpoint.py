"""A checkpoint is read as it was written, and an invalid one is rejected with a message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deviceplugin.modes import mode_checkpoint
from deviceplugin.modes.desired_config import ConfiguredGpu
from gpushare.config.config_choice import ActiveConfig
from gpushare.config.model import Devices, ResourceRule, Resources
from gpushare.gpunode import Mode
from gpushare.modes.assignment import Assignment, Partition
from gpushare.modes.device_resources import SharedResource

CONFIG = ActiveConfig("a", 'flags: {migStrategy: "mixed"}\n')
SHARED = SharedResource(Mode.TIME_SLICING, "nvidia.com/gpu", Devices(listed=("0:1",)), "nvidia.com/gpu.shared", 4, True)
ASSIGNMENTS = {
    "GPU-a": Assignment(Mode.FRACTIONAL),
    "GPU-b": None,
    "GPU-c": Assignment(Mode.TIME_SLICING, "nvidia.com/gpu", 4, True, "short"),
    "GPU-d": Assignment(
        Mode.MIG,
        partition=Partition(True, (("1g.10gb", 2), ("3g.40gb", 1))),
        strategy="mixed",
        rules=Resources(mig=(ResourceRule("1g*", "nvidia.com/small"),)),
        shared=(SHARED,),
    ),
}


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = mode_checkpoint.Checkpoint(CONFIG, ASSIGNMENTS)
    mode_checkpoint.write(tmp_path / "state" / "book.json", written)
    assert mode_checkpoint.read(tmp_path / "state" / "book.json") == written


def test_a_gpu_being_set_up_remembers_its_last_assignment(tmp_path: Path) -> None:
    known_gpus = (ConfiguredGpu("GPU-a", 0, "NVIDIA A100", mig_capable=True), ConfiguredGpu("GPU-b", 1))
    begun = (
        mode_checkpoint.Checkpoint(CONFIG, ASSIGNMENTS, known_gpus=known_gpus)
        .assign("GPU-d", None)
        .assign("GPU-d", None)
    )
    mode_checkpoint.write(tmp_path / "book.json", begun)
    checkpoint = mode_checkpoint.read(tmp_path / "book.json")
    assert checkpoint == begun
    assert checkpoint is not None
    assert (checkpoint.gpus["GPU-d"], checkpoint.last("GPU-d")) == (None, ASSIGNMENTS["GPU-d"])
    assert (checkpoint.last("GPU-a"), checkpoint.last("GPU-b")) == (ASSIGNMENTS["GPU-a"], None)
    ended = checkpoint.assign("GPU-d", Assignment(Mode.EXCLUSIVE))
    assert (ended.before, ended.last("GPU-d")) == ({}, Assignment(Mode.EXCLUSIVE))


def test_a_missing_checkpoint_is_none(tmp_path: Path) -> None:
    assert mode_checkpoint.read(tmp_path / "book.json") is None


def test_fields_that_an_older_agent_did_not_write_have_defaults(tmp_path: Path) -> None:
    path = tmp_path / "book.json"
    path.write_text('{"version": 1, "current": {"name": "a"}, "gpus": {"GPU-a": {"mode": "exclusive"}}}')
    assert mode_checkpoint.read(path) == mode_checkpoint.Checkpoint(
        ActiveConfig("a"), {"GPU-a": Assignment(Mode.EXCLUSIVE)}
    )


@pytest.mark.parametrize(
    "change",
    [
        {"version": 9},
        {"gpus": []},
        {"gpus": {"GPU-a": {"mode": "unheard of"}}},
        {"gpus": {"GPU-a": {"mode": "mps", "replicas": "many"}}},
        {"gpus": {"GPU-a": {"mode": "mps", "colour": "red"}}},
        {"gpus": {"GPU-a": {}}},
        {"current": None},
    ],
)
def test_an_invalid_checkpoint_is_rejected(tmp_path: Path, change: object) -> None:
    path = tmp_path / "book.json"
    mode_checkpoint.write(path, mode_checkpoint.Checkpoint(CONFIG, ASSIGNMENTS))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(mode_checkpoint.CheckpointError, match="is invalid"):
        mode_checkpoint.read(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "1"])
def test_a_file_that_is_no_checkpoint_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "book.json"
    path.write_text(text)
    with pytest.raises(mode_checkpoint.CheckpointError, match="is invalid"):
        mode_checkpoint.read(path)
