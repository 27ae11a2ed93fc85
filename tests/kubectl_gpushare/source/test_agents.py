"""Agents are asked through the API server's proxy, and missing answers are reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import yaml

from kubectl_gpushare import kubectl
from kubectl_gpushare.source import agents, live_usage
from kubectl_gpushare.source.live_usage import Used
from tests.kubectl_gpushare.conftest import ROOT

LINE = 'gpushare_share_used_memory_bytes{node="a",namespace="ml",pod="p",containers="main",gpu="G1"} 5.0'


def server(fake_kubectl: Callable[[str], str], tmp_path: Path, *, metrics: str) -> kubectl.Kubectl:
    """Run agents on a and b; the agent of a answers with a line, that of b does as `metrics` says."""
    pods = [
        {"metadata": {"name": f"agent-{node}"}, "spec": {"nodeName": node}, "status": {"phase": "Running"}}
        for node in ("a", "b")
    ]
    (tmp_path / "pods.json").write_text(json.dumps({"items": pods}))
    (tmp_path / "a.txt").write_text(LINE + "\n")
    program = fake_kubectl(f"""
        case "$3" in
        */pods/agent-a:8081/proxy/metrics) cat {tmp_path}/a.txt;;
        */proxy/metrics) {metrics};;
        */pods\\?labelSelector=*) cat {tmp_path}/pods.json;;
        *) exit 1;;
        esac
    """)
    return kubectl.Kubectl((), program)


def test_agent_of_each_node_is_asked(fake_kubectl: Callable[[str], str], tmp_path: Path) -> None:
    usage, notes = agents.ask(server(fake_kubectl, tmp_path, metrics="true"), ["a", "b"])
    assert (usage.nodes, notes) == (frozenset({"a", "b"}), ())
    assert usage.of_pod("a", "ml", "p", ["G1"]) == Used(5, bound=True)


def test_missing_answers_are_grouped_by_reason(fake_kubectl: Callable[[str], str], tmp_path: Path) -> None:
    refused = "echo 'Error from server (ServiceUnavailable): no endpoint' >&2; exit 1"
    usage, notes = agents.ask(server(fake_kubectl, tmp_path, metrics=refused), ["a", "b", "c", "d"])
    assert usage.nodes == {"a"}
    assert notes == (
        "used figures of 2 nodes: no agent runs there",
        "used figures of b: the API server says ServiceUnavailable: no endpoint",
    )


def test_missing_right_is_one_sentence(fake_kubectl: Callable[[str], str]) -> None:
    program = fake_kubectl("""
        echo 'Error from server (Forbidden): pods is forbidden: User "jane" cannot list resource "pods" in API group ""' >&2
        exit 1
    """)
    usage, notes = agents.ask(kubectl.Kubectl((), program), ["a"])
    assert usage == live_usage.Usage()
    assert len(notes) == 1
    assert notes[0].startswith('used figures: user "jane" may not list pods')


def test_metric_names_and_port_equal_the_agents() -> None:
    assert any(f'"{live_usage.MEMORY}"' in path.read_text() for path in (ROOT / "deviceplugin").rglob("*.py"))
    manifest = yaml.safe_load((ROOT / "config" / "base" / "deviceplugin" / "daemonset.yaml").read_text())
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    assert any(port["containerPort"] == agents.PORT for port in container["ports"])
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert all(f"{key.replace('/', '%2F')}%3D{value}" in agents.AGENTS for key, value in labels.items())
