"""Every example in every `--help` is run, on the sample cluster."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from kubectl_gpushare import cli
from tests.kubectl_gpushare import answers, sample
from tests.kubectl_gpushare.conftest import ROOT, Plugin

OFFLINE = {"completion", "migrate", "version"}
LABELS = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
# Exit codes that answer a question about the cluster rather than report a failure.
CODES = {"fit": {0, 2}, "resize": {0, 2}, "audit": {0, 1, 2}, "check": {0, 1, 2}}
CONFIGURATIONS = ROOT / "config" / "samples" / "config" / "configmap.yaml"


def examples() -> Iterator[tuple[str, str]]:
    for verb in cli.VERBS:
        command = cli.group.get_command(None, verb)  # type: ignore[arg-type]
        assert command is not None
        within = command.commands.values() if isinstance(command, click.Group) else ()
        for text in (command.help, *(child.help for child in within)):
            for line in re.findall(r"^ *kubectl gpushare (.*)$", text or "", re.MULTILINE):
                yield verb, line


def of_a_deployment() -> dict[str, Any]:
    """Return a pod of the Deployment `server`."""
    manifest = sample.gated("ml/server-84db4c6556-a", request="0.5")
    manifest["metadata"]["labels"]["pod-template-hash"] = "84db4c6556"
    owner = {"kind": "ReplicaSet", "name": "server-84db4c6556", "controller": True}
    manifest["metadata"]["ownerReferences"] = [owner]
    return manifest


@pytest.mark.parametrize(("verb", "line"), list(examples()), ids=lambda text: str(text))
def test_an_example_of_the_help_runs(plugin: Plugin, saved: Path, tmp_path: Path, verb: str, line: str) -> None:
    words = shlex.split(line.partition(" > ")[0])
    assert words[0] == verb
    command = cli.group.get_command(None, verb)  # type: ignore[arg-type]
    assert command is not None
    command.make_context(verb, words[1:], resilient_parsing=False)
    needs_cluster = {"-i", "-w", "--apply"} & set(words) or words[:2] == ["migrate", "-n"]
    if verb == "ui" and "--export" not in words:
        return  # it serves until Ctrl-C: run in its own tests
    if needs_cluster or verb in {"cordon", "uncordon"} or words[1:2] in (["set"], ["label"]):
        return  # they need a cluster: run in their own tests
    nodes = tmp_path / "nodes.json"
    nodes.write_text(json.dumps({"kind": "Node", "metadata": {"name": "gpu-1", "labels": LABELS}}))
    server = tmp_path / "server.json"
    server.write_text(json.dumps(of_a_deployment()))
    metrics = tmp_path / "metrics.txt"
    metrics.write_text(answers.metrics())
    trace = tmp_path / "trace.csv"
    trace.write_text("name,start,duration,request\na,0,10,0.5\nb,5,,1\n")
    manifest = ROOT / "config" / "samples" / "half-gpu.yaml"
    files = {
        "--from": saved,
        "-f": CONFIGURATIONS if verb == "config" else manifest,
        "--trace": trace,
        "--plot": tmp_path / "plot.svg",
        "--metrics": metrics,
        "--to": tmp_path,
        "--export": tmp_path / "page.html",
    }
    for flag, path in files.items():
        if flag in words:
            words[words.index(flag) + 1] = str(path)
    words = [str(CONFIGURATIONS) if word == "node.yaml" else word for word in words]
    if "--from" not in words and verb not in OFFLINE and "validate" not in words:
        words += [
            "--from",
            str(saved),
            "--from",
            str(CONFIGURATIONS),
            *(["--from", str(nodes)] if "-l" in words else []),
            *(["--from", str(server)] if "deploy/server" in words else []),
        ]
    ended = plugin(*words)
    assert ended.code in CODES.get(verb, {0}), ended.err


@pytest.mark.parametrize("verb", [verb for verb in cli.VERBS if verb != "version"])
def test_every_verb_has_examples_with_a_comment_each(verb: str) -> None:
    command = cli.group.get_command(None, verb)  # type: ignore[arg-type]
    assert command is not None
    lines = [line.strip() for line in (command.help or "").partition("Examples:")[2].splitlines() if line.strip()]
    assert any(line.startswith("kubectl gpushare ") for line in lines)
    assert sum(line.startswith("# ") for line in lines) >= 2
