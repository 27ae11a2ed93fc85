"""`audit`: requests to agents, sentences about missing answers, and the exit code."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract
from gpushare.gpunode import Condition
from kubectl_gpushare.planning import auditing
from kubectl_gpushare.views import audit
from tests.kubectl_gpushare import answers, sample
from tests.kubectl_gpushare.conftest import Plugin

GPU_1 = sample.nodes()[0]
OLDER = "echo 'Error from server (NotFound): the server could not find the requested resource' >&2; exit 1"


@pytest.fixture
def server(fake_kubectl: Callable[[str], str], tmp_path: Path) -> Callable[..., str]:
    """Make a cluster with the sample's node gpu-1, whose agent answers with this audit, or acts like this."""

    def make(audit: dict[str, Any] | str, *conditions: Condition, agent: str = "True") -> str:
        node = dataclasses.replace(GPU_1, conditions=conditions)
        (tmp_path / "nodes.json").write_text(json.dumps({"kind": "GPUNodeList", "items": [codec.to_document(node)]}))
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": agent}]}
        pod = {"metadata": {"name": "agent"}, "spec": {"nodeName": "gpu-1"}, "status": status}
        (tmp_path / "pods.json").write_text(json.dumps({"items": [pod] if agent else []}))
        (tmp_path / "audit.json").write_text(audit if isinstance(audit, str) else json.dumps(audit))
        answer = audit if isinstance(audit, str) else f"cat {tmp_path}/audit.json"
        return fake_kubectl(f"""
            case "$3" in
            */proxy/audit) {answer};;
            */pods\\?labelSelector=*) cat {tmp_path}/pods.json;;
            */gpunodes*) cat {tmp_path}/nodes.json;;
            */api/v1/nodes\\?labelSelector=a%3Db) echo '{{"kind": "NodeList", "items": [{{"metadata": {{"name": "gpu-1"}}}}]}}';;
            *) exit 1;;
            esac
        """)

    return make


def conditions(status: str) -> tuple[Condition, Condition]:
    since = "2026-03-01T12:00:00Z"
    limits = Condition(contract.CONDITION_LIMITS_IN_FORCE, status, message="as it was", last_transition=since)
    return Condition(contract.CONDITION_READY, "True"), limits


def test_all_limits_in_force_is_one_line_and_code_0(plugin: Plugin, server: Callable[..., str]) -> None:
    ended = plugin("audit", KUBECTL_PATH=server(answers.audit(GPU_1)))
    assert (ended.code, ended.out, ended.err) == (0, "4 of 4 containers limited on 1 node\n", "")


def test_each_problem_is_a_line_and_the_code_2(plugin: Plugin, server: Callable[..., str]) -> None:
    ended = plugin("audit", "gpu-1", "-l", "a=b", KUBECTL_PATH=server(answers.troubled()))
    assert (ended.code, ended.err) == (2, "")
    lines = ended.out.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["gpu-1/3", "NotInForce"],
        ["gpu-1/0", "Unlimited"],
        ["gpu-1/3", "Foreign"],
    ]
    assert lines[-1].startswith("1 of 3 containers limited on 1 node; ")


def test_wide_lists_every_share(plugin: Plugin, server: Callable[..., str]) -> None:
    out = plugin("audit", "-o", "wide", "--no-headers", KUBECTL_PATH=server(answers.audit(GPU_1))).out
    assert [line.split()[0] for line in out.splitlines() if line] == [
        "ml/trainer",
        "ml/notebook",
        "ml/llm",
        "ml/llm",
        "web/small",
    ]


def test_document_has_an_item_for_each_share(plugin: Plugin, server: Callable[..., str]) -> None:
    program = server(answers.troubled())
    document = json.loads(plugin("audit", "-o", "json", KUBECTL_PATH=program).out)
    assert (document["kind"], len(document["items"]), document["summary"]["inForce"]) == ("AuditList", 5, False)
    assert {item["isolation"] for item in document["items"]} == {"arbiter"}
    rows = list(csv.DictReader(io.StringIO(plugin("audit", "-o", "csv", KUBECTL_PATH=program).out)))
    assert all(None not in row and None not in row.values() for row in rows)
    assert {row["limits"] for row in rows} == {"InForce", "NotInForce", "Idle"}


def test_names_are_unique_and_only_of_problems(plugin: Plugin, server: Callable[..., str]) -> None:
    ended = plugin("audit", "-o", "name", KUBECTL_PATH=server(answers.troubled()))
    assert (ended.code, ended.out, ended.err) == (2, "pod/trainer\npod/small\ngpu.gpushare.io/gpu-1/3\n", "")
    ended = plugin("audit", "-o", "name", KUBECTL_PATH=server(answers.audit(GPU_1)))
    assert (ended.code, ended.out) == (0, "")
    ended = plugin("audit", "-o", "name", KUBECTL_PATH=server(OLDER, *conditions("False")))
    assert (ended.code, ended.out) == (2, "gpunode.gpushare.io/gpu-1\n")


def test_pods_with_one_name_in_two_namespaces_are_two() -> None:
    verdict = auditing.check([GPU_1], answers.read(answers.troubled()))
    stray = next(stray for stray in verdict.strays if stray.process.pod)
    twin = dataclasses.replace(stray, process=dataclasses.replace(stray.process, namespace="web"))
    strays_only = dataclasses.replace(verdict, shares=(), strays=(stray, twin, stray))
    assert list(audit.listing(strays_only, {}, ()).names()) == ["pod/trainer", "pod/trainer"]


@pytest.mark.parametrize("output", ["csv", "name"])
def test_notes_go_to_stderr_if_the_format_has_none(plugin: Plugin, server: Callable[..., str], output: str) -> None:
    ended = plugin("audit", "-o", output, KUBECTL_PATH=server(OLDER))
    assert ended.code == 1
    assert "warning: audits: the agent has no /audit, so it is older than this plugin\n" in ended.err


@pytest.mark.parametrize(
    ("status", "code"), [("True", 0), ("False", 2), ("Unknown", 1), ("", 1)], ids=["yes", "no", "unknown", "none"]
)
def test_condition_decides_without_an_answer_and_a_note_says_so(
    plugin: Plugin, server: Callable[..., str], status: str, code: int
) -> None:
    ended = plugin("audit", KUBECTL_PATH=server(OLDER, *(conditions(status) if status else ())))
    assert ended.code == code
    assert "warning: audits: the agent has no /audit, so it is older than this plugin\n" in ended.err
    certain = "of gpu-1 only the condition of the GPUNode is known" in ended.err
    assert certain is (status in {"True", "False"})


@pytest.mark.parametrize("agent", ["", "False", "Unknown"], ids=["away", "ill", "its node is away"])
def test_condition_of_a_stopped_agent_is_shown_with_its_age_but_proves_nothing(
    plugin: Plugin, server: Callable[..., str], agent: str
) -> None:
    silent = "echo 'Error from server (ServiceUnavailable): no connection' >&2; exit 1"
    ended = plugin("audit", KUBECTL_PATH=server(silent, *conditions("True"), agent=agent))
    assert (ended.code, ended.out) == (1, "not certain of 1 node\n")
    assert (
        "warning: not certain of gpu-1: its GPUNode says LimitsInForce since 2026-03-01T12:00:00Z, which is no proof: its "
        "agent has not answered, and whether it runs is unknown\n"
    ) in ended.err
    assert plugin("audit", KUBECTL_PATH=server(silent, *conditions("False"), agent=agent)).code == 2


def test_invalid_answer_counts_as_missing(plugin: Plugin, server: Callable[..., str]) -> None:
    ended = plugin("audit", KUBECTL_PATH=server("echo '{\"node\": 1}'"))
    assert ended.code == 1
    assert "warning: audit of gpu-1: its agent's answer is invalid to this plugin" in ended.err


def test_user_without_access_to_agents_gets_the_missing_right(plugin: Plugin, server: Callable[..., str]) -> None:
    refused = (
        'echo \'Error from server (Forbidden): pods "agent" is forbidden: User "jane" cannot get resource "pods/proxy" '
        'in API group "" in the namespace "gpushare-system"\' >&2; exit 1'
    )
    ended = plugin("audit", KUBECTL_PATH=server(refused, *conditions("True")))
    assert ended.code == 0
    assert 'audits: user "jane" may not get pods/proxy in the namespace "gpushare-system": ask an admin' in ended.err


def test_saved_objects_have_only_conditions(plugin: Plugin, saved: Path) -> None:
    ended = plugin("audit", "--from", saved)
    assert ended.code == 1
    assert ended.err.startswith("warning: audits: files of --from have none\n")


def test_a_node_that_is_not_there_is_an_error(plugin: Plugin, saved: Path) -> None:
    ended = plugin("audit", "gpu-1", "gpu-9", "--from", saved)
    assert (ended.code, ended.out, ended.err) == (1, "", 'error: no GPUNode "gpu-9"\n')


def test_cluster_without_shares_has_no_problems(plugin: Plugin) -> None:
    ended = plugin("audit", "--from", "-", input='{"kind": "GPUNode", "metadata": {"name": "new"}}')
    assert (ended.code, ended.out) == (0, "no node has GPUs that are shared by annotation\n")


def test_endless_answer_of_an_agent_is_cut_off_and_reported(plugin: Plugin, server: Callable[..., str]) -> None:
    ended = plugin("audit", KUBECTL_PATH=server("exec cat /dev/zero"))
    assert ended.code != 0
    assert "the answer is longer than 16 MiB" in ended.out + ended.err
