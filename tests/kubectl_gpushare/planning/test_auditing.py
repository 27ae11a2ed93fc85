"""Audits and conditions become a verdict: proven, broken or unknown."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpushare import contract
from gpushare.allocation import Isolation
from gpushare.gpunode import Condition, GpuNode
from kubectl_gpushare.planning import auditing
from kubectl_gpushare.planning.auditing import AuditState, AuditVerdict, parse_audit
from tests.kubectl_gpushare import answers, sample

NODE = sample.nodes()[0]


def verdict(document: dict[str, Any], node: GpuNode = NODE) -> AuditVerdict:
    return auditing.check([node], answers.read(document))


def saying(status: str, *, message: str = "") -> GpuNode:
    limits = Condition(contract.CONDITION_LIMITS_IN_FORCE, status, message=message)
    return dataclasses.replace(NODE, conditions=(limits,))


def test_verdict_is_proven_if_every_share_is_limited() -> None:
    judgement = verdict(answers.audit(NODE))
    assert not judgement.broken
    assert not judgement.uncertain
    assert judgement.containers(AuditState.IN_FORCE) == 4  # of four pods, one of them on two GPUs


def test_shares_have_the_isolation_of_the_ledger() -> None:
    first, *others = NODE.allocations
    labels = dataclasses.replace(first.labels, isolation=Isolation.MPS)
    node = dataclasses.replace(NODE, allocations=(dataclasses.replace(first, labels=labels), *others))
    for judgement in (verdict(answers.audit(node), node), auditing.check([node], {})):
        by_pod = {share.pod: share.isolation for share in judgement.shares}
        assert by_pod.pop(first.pod.name) == "mps"
        assert set(by_pod.values()) == {"arbiter"}


def test_share_without_processes_is_idle() -> None:
    document = answers.audit(NODE)
    document["shares"] = [share | {"processes": 0, "withLibrary": 0} for share in document["shares"]]
    judgement = verdict(document)
    assert (judgement.broken, judgement.uncertain, judgement.containers(AuditState.IDLE)) == (False, False, 4)


def test_share_missing_from_the_audit_is_idle() -> None:
    judgement = verdict(answers.audit(NODE) | {"shares": []})
    assert (judgement.broken, judgement.containers(AuditState.IDLE)) == (False, 4)


def test_container_is_limited_only_if_it_is_on_all_its_gpus() -> None:
    document = answers.audit(NODE)
    next(share for share in document["shares"] if share["pod"] == "llm")["inForce"] = False
    judgement = verdict(document)
    assert judgement.broken
    assert (judgement.containers(AuditState.IN_FORCE), judgement.containers(AuditState.BROKEN)) == (3, 1)


def test_process_without_the_library_breaks_its_containers_limits() -> None:
    judgement = verdict(answers.troubled())
    trainer = next(share for share in judgement.shares if share.pod == "trainer")
    assert (trainer.state, trainer.evaded) == (AuditState.BROKEN, True)
    assert [stray.process.pid for stray in judgement.strays] == [4712, 99]  # neither limited nor checked containers


def test_share_known_only_to_the_agent_is_shown() -> None:
    judgement = verdict(answers.audit(NODE), dataclasses.replace(NODE, allocations=NODE.allocations[1:]))
    assert {share.pod for share in judgement.shares} == {"trainer", "notebook", "llm", "small"}


def test_reservations_have_no_containers() -> None:
    node = sample.nodes()[1]
    judgement = auditing.check([node], answers.read(answers.audit(node) | {"shares": []}))
    assert [share.pod for share in judgement.shares] == ["old"]


def test_incomplete_audit_proves_nothing() -> None:
    judgement = verdict(answers.audit(NODE) | {"problem": "the driver does not tell processes", "blind": True})
    assert (judgement.broken, judgement.uncertain) == (False, True)
    assert judgement.nodes[0].reason == "the driver does not tell processes"
    enough = verdict(answers.audit(NODE) | {"problem": "contexts are not charged"})
    assert not enough.uncertain  # the agent's reason


def test_condition_counts_if_a_running_agent_does_not_answer() -> None:
    by_condition = auditing.check([saying("True")], {}, ready={NODE.name})
    assert (by_condition.broken, by_condition.uncertain) == (False, False)
    assert by_condition.containers(AuditState.CONDITION) == 4
    for node, ready in ((saying("True"), {"other"}), (saying("Unknown"), {NODE.name}), (NODE, {NODE.name})):
        judgement = auditing.check([node], {}, ready=ready)
        assert (judgement.broken, judgement.uncertain) == (False, True)
        assert judgement.containers(AuditState.UNKNOWN) == 4


def test_negative_condition_is_believed() -> None:
    for ready in ((), {NODE.name}):
        judgement = auditing.check([saying("False", message="pid 5 has no limit")], {}, ready=ready)
        assert judgement.broken
        assert judgement.nodes[0].reason == "pid 5 has no limit"


def test_invalid_audit_is_rejected_as_a_whole() -> None:
    for text in ("", "[]", "{}", '{"node": "a", "checkedAt": 1, "gpus": [{"processes": [{}]}], "shares": []}'):
        try:
            parse_audit(text)
        except ValueError:
            continue
        raise AssertionError(text)
