"""The demo of `./install.sh --local`, run as a user runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare import codec, contract, ledger
from lab import demo
from tests.config import manifests


@pytest.mark.slow
def test_the_demo_places_gates_and_rejects_pods_with_the_real_webhook() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lab.demo"],
        cwd=manifests.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "● half-gpu  (request: 0.5)\n" in done.stdout
    assert f"+ metadata.annotations.{contract.NODE}: gpu-a" in done.stdout
    assert f'REFUSED: {contract.REQUEST} "1.5" is more than one GPU' in done.stdout
    assert f"+ metadata.annotations.{contract.REASON}: no GPU fits 4 GPUs" in done.stdout
    assert "NAME      MODEL" in done.stdout
    assert "1 gated, 1 refused" in done.stdout
    items = json.loads((demo.DIRECTORY / "state.json").read_text())["items"]
    nodes = [codec.read(item) for item in items if item["kind"] == contract.GPUNODE_KIND]
    assert [ledger.violations(node) for node in nodes] == [[], [], []]
    pods = [item for item in items if item["kind"] == "Pod"]
    assert len(pods) == sum(len(node.allocations) for node in nodes) + 1  # the gated pod holds nothing


def test_a_difference_is_shown_one_value_per_line() -> None:
    before = {"spec": {"containers": [{"name": "a", "image": "x", "env": [{"name": "K", "value": "1"}]}]}}
    after = {
        "spec": {
            "containers": [{"name": "a", "image": "x", "env": [{"name": "K", "value": "2"}]}],
            "gates": [{"name": "g"}],
        }
    }
    assert demo.difference(before, after) == [
        "- spec.containers[a].env[K]: 1",
        "+ spec.containers[a].env[K]: 2",
        "+ spec.gates: g",
    ]
    assert demo.difference(after, after) == []


def test_a_long_step_of_the_demo_shows_progress(tmp_path: Path) -> None:
    make, go = tmp_path / "make", tmp_path / "go"
    make.write_text(f"#!/bin/sh\nfor _ in $(seq 600); do [ -e {go} ] && exit 3; sleep 0.1; done\n")
    make.chmod(0o755)
    process = subprocess.Popen(
        ["./install.sh", "--local"],
        cwd=manifests.REPOSITORY,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        first = next(line for line in output if line.startswith("  … "))
        go.touch()
        assert process.wait(60) == 3
    assert re.fullmatch(r"  … \d+ s\n", first)
