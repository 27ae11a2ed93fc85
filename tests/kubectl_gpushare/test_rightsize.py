"""`rightsize`: sizes and the commands for them, from saved metrics and from agents."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gpushare import codec, quantity, request
from kubectl_gpushare import cli
from kubectl_gpushare.planning import rightsizing
from tests import builders
from tests.kubectl_gpushare import answers, sample
from tests.kubectl_gpushare.conftest import ROOT, Plugin


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.txt"
    path.write_text(answers.metrics())
    return path


def test_a_suggestion_comes_with_its_command(plugin: Plugin, saved: Path, metrics: Path) -> None:
    ended = plugin("rightsize", "-n", "ml", "trainer", "--from", saved, "--metrics", metrics)
    assert (ended.code, ended.err) == (0, "")
    assert "1 of 1 share could change in size and free 0.1 GPU of compute and 15Gi of memory" in ended.out
    assert ended.out.splitlines()[-1] == "kubectl gpushare resize trainer -n ml --request 0.4 --memory 25Gi"


def test_printed_commands_are_valid_resize_commands(plugin: Plugin, saved: Path, metrics: Path) -> None:
    out = plugin("rightsize", "-A", "-o", "commands", "--from", saved, "--metrics", metrics).out
    resize = cli.group.get_command(None, "resize")  # type: ignore[arg-type]
    assert resize is not None
    lines = [shlex.split(line) for line in out.splitlines()]
    assert len(lines) == 3
    for program, plugin_name, verb, *words in lines:
        assert (program, plugin_name, verb) == ("kubectl", "gpushare", "resize")
        resize.make_context("resize", words, resilient_parsing=False)


def test_names_are_of_pods_with_a_suggestion(plugin: Plugin, saved: Path, metrics: Path) -> None:
    words = ("rightsize", "-A", "--from", saved, "--metrics", metrics, "-o")
    names = plugin(*words, "name").out.splitlines()
    commands = plugin(*words, "commands").out.splitlines()
    assert names == list(dict.fromkeys(f"pod/{shlex.split(line)[3]}" for line in commands))
    assert "pod/trainer" in names


def test_container_with_annotations_gets_its_own_suggestion(plugin: Plugin, tmp_path: Path) -> None:
    node = builders.node("a", gpus=1)
    entry = builders.allocation("a1", node.gpus[0].uuid, request=50, memory_gib=40, uid="u")
    side = dataclasses.replace(entry.shares[0], containers=("side",), request_percent=25)
    node = dataclasses.replace(node, allocations=(dataclasses.replace(entry, shares=(entry.shares[0], side)),))
    pod = builders.pod(containers=("main", "side"), request="0.5", memory="40Gi")
    pod["metadata"]["uid"] = "u"
    pod["metadata"]["annotations"] |= {"gpushare.io/request.side": "0.25", "gpushare.io/memory.side": "40Gi"}
    for name in ("with", "without"):
        items = [codec.to_document(node), *([pod] if name == "with" else [])]
        (tmp_path / name).write_text(json.dumps({"kind": "List", "items": items}))
    metrics = tmp_path / "metrics"
    labels = f'{{namespace="default",pod="trainer",containers="side",gpu="{node.gpus[0].uuid}"}}'
    metrics.write_text(
        f"{rightsizing.PEAK_MEMORY}{labels} 1e9\n{rightsizing.PEAK_COMPUTE}{labels} 0.1\n{rightsizing.OBSERVED_SECONDS}{labels} 9e9\n"
    )
    words = ("rightsize", "--metrics", metrics, "-o")
    line = "kubectl gpushare resize trainer -n default -c side --request 0.15 --memory 1280Mi\n"
    assert plugin(*words, "commands", "--from", tmp_path / "with").out == line
    assert plugin(*words, "commands", "--from", tmp_path / "without").out == line
    document = yaml.safe_load(plugin(*words, "yaml", "--from", tmp_path / "with").out)
    pod["metadata"]["annotations"] |= document["items"][1]["annotations"]
    wanted = request.parse(pod).demands[1]
    assert (wanted.share.request_percent, wanted.share.memory.bytes) == (15, quantity.parse_bytes("1280Mi"))


def test_short_observation_is_reported_and_can_be_allowed(plugin: Plugin, saved: Path, metrics: Path) -> None:
    words = ("rightsize", "-n", "batch", "b", "--from", saved, "--metrics", metrics)
    only = plugin(*words, "-o", "commands")
    assert (only.code, only.out) == (0, "")
    assert only.err == "1 share seen for less than 30m, so nothing is suggested: see --min-observed\n"
    assert "1 share seen for less than 30m, so nothing is suggested: see --min-observed\n" in plugin(*words).out
    out = plugin(*words, "--min-observed", "1m", "--margin", "0").out
    assert "resize b -n batch --request 0.1 --memory 1Gi\n" in out


def test_only_agents_of_the_pods_nodes_are_asked(
    plugin: Plugin, fake_kubectl: Callable[[str], str], tmp_path: Path, metrics: Path
) -> None:
    nodes = {"kind": "GPUNodeList", "items": [codec.to_document(node) for node in sample.nodes()]}
    (tmp_path / "nodes.json").write_text(json.dumps(nodes))
    pod = {"metadata": {"name": "agent"}, "spec": {"nodeName": "gpu-1"}, "status": {"phase": "Running"}}
    (tmp_path / "agents.json").write_text(json.dumps({"items": [pod]}))
    program = fake_kubectl(f"""
        case "$3" in
        */proxy/metrics) cat {metrics};;
        */gpushare-system/pods*) cat {tmp_path}/agents.json;;
        */pods*) echo 'Error from server (Forbidden): pods is forbidden: User "jane" cannot list resource "pods" in API group ""' >&2; exit 1;;
        */gpunodes*) cat {tmp_path}/nodes.json;;
        *) exit 1;;
        esac
    """)
    ended = plugin("rightsize", "-A", KUBECTL_PATH=program)
    assert ended.code == 0
    assert "resize trainer -n ml --request 0.4 --memory 25Gi" in ended.out
    assert "peaks of 2 nodes: no agent runs there" in ended.err
    assert 'user "jane" may not list pods' in ended.err


def test_agent_without_peaks_is_reported_as_older(
    plugin: Plugin, fake_kubectl: Callable[[str], str], tmp_path: Path
) -> None:
    nodes = {"kind": "GPUNodeList", "items": [codec.to_document(sample.nodes()[0])]}
    (tmp_path / "nodes.json").write_text(json.dumps(nodes))
    pod = {"metadata": {"name": "agent"}, "spec": {"nodeName": "gpu-1"}, "status": {"phase": "Running"}}
    (tmp_path / "agents.json").write_text(json.dumps({"items": [pod]}))
    program = fake_kubectl(f"""
        case "$3" in
        */proxy/metrics) echo "up 1";;
        */gpushare-system/pods*) cat {tmp_path}/agents.json;;
        */gpunodes*) cat {tmp_path}/nodes.json;;
        *) echo '{{"items": []}}';;
        esac
    """)
    err = plugin("rightsize", "-A", KUBECTL_PATH=program).err
    assert err == "warning: peaks: the agent measures none, so it is older than this plugin\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--margin", "much"), 'error: --margin "much" is not a part: write it as 20% or 0.2\n'),
        (("--min-observed", "30"), 'error: --min-observed "30" is not a duration'),
        (("--metrics", "/nonexistent"), "error: /nonexistent cannot be read"),
        (("nobody",), 'No pods that hold shares found in ml namespace.\nerror: no pod that holds a share "nobody"\n'),
        (("-l", "a b"), 'error: "a b" is no label selector'),
    ],
    ids=str,
)
def test_invalid_option_is_one_sentence(
    plugin: Plugin, saved: Path, metrics: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    more = () if "--metrics" in arguments else ("--metrics", metrics)
    ended = plugin("rightsize", "-n", "ml", *arguments, *more, "--from", saved)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(sentence)


def test_metrics_without_peaks_give_no_peaks(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("up 1\n")
    ended = plugin("rightsize", "--from", saved, "--metrics", tmp_path / "other.txt")
    assert ended.code == 1
    assert f"has no {rightsizing.PEAK_MEMORY}: save what an agent answers at /metrics" in ended.err


def test_peaks_are_unknown_without_metrics(plugin: Plugin, saved: Path) -> None:
    ended = plugin("rightsize", "-A", "--from", saved)
    assert ended.code == 0
    assert "8 shares without anything to go by" in ended.out
    assert "files of --from have none: add --metrics FILE" in ended.err


def test_metric_names_equal_the_agents() -> None:
    written = "".join(path.read_text() for path in (ROOT / "deviceplugin").rglob("*.py"))
    assert all(
        f'"{name}"' in written
        for name in (rightsizing.PEAK_MEMORY, rightsizing.PEAK_COMPUTE, rightsizing.OBSERVED_SECONDS)
    )
