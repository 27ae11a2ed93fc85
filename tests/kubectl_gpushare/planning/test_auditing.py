"""From audits and conditions to a verdict: what is proven, what is broken, what nobody can tell."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpushare import contract
from gpushare.gpunode import Condition, GpuNode
from kubectl_gpushare.planning import auditing
from kubectl_gpushare.planning.auditing import AuditState, AuditVerdict
from kubectl_gpushare.source import audits
from tests.kubectl_gpushare import answers, sample

NODE = sample.nodes()[0]


def verdict(document: dict[str, Any], node: GpuNode = NODE) -> AuditVerdict:
    return auditing.check([node], answers.read(document))


def saying(status: str, *, message: str = "") -> GpuNode:
    limits = Condition(contract.CONDITION_LIMITS_IN_FORCE, status, message=message)
    return dataclasses.replace(NODE, conditions=(limits,))


def test_where_every_share_is_held_all_is_proven() -> None:
    judgement = verdict(answers.audit(NODE))
    assert not judgement.broken
    assert not judgement.uncertain
    assert judgement.containers(AuditState.IN_FORCE) == 4  # of four pods, one of them on two GPUs


def test_a_share_that_runs_nothing_is_no_proof_and_no_trouble() -> None:
    document = answers.audit(NODE)
    document["shares"] = [share | {"processes": 0, "withLibrary": 0} for share in document["shares"]]
    judgement = verdict(document)
    assert (judgement.broken, judgement.uncertain, judgement.containers(AuditState.IDLE)) == (False, False, 4)


def test_a_share_that_the_agent_does_not_list_runs_nothing() -> None:
    judgement = verdict(answers.audit(NODE) | {"shares": []})
    assert (judgement.broken, judgement.containers(AuditState.IDLE)) == (False, 4)


def test_a_container_is_held_only_if_it_is_on_all_its_gpus() -> None:
    document = answers.audit(NODE)
    next(share for share in document["shares"] if share["pod"] == "llm")["inForce"] = False
    judgement = verdict(document)
    assert judgement.broken
    assert (judgement.containers(AuditState.IN_FORCE), judgement.containers(AuditState.BROKEN)) == (3, 1)


def test_a_process_around_the_library_breaks_its_container_s_limits() -> None:
    judgement = verdict(answers.troubled())
    trainer = next(share for share in judgement.shares if share.pod == "trainer")
    assert (trainer.state, trainer.evaded) == (AuditState.BROKEN, True)
    assert [stray.process.pid for stray in judgement.strays] == [4712, 99]  # and not who is limited, or not judged


def test_only_what_the_agent_has_is_shown_too() -> None:
    judgement = verdict(answers.audit(NODE), dataclasses.replace(NODE, allocations=NODE.allocations[1:]))
    assert {share.pod for share in judgement.shares} == {"trainer", "notebook", "llm", "small"}


def test_what_is_only_reserved_or_held_has_no_container() -> None:
    node = sample.nodes()[1]
    judgement = auditing.check([node], answers.read(answers.audit(node) | {"shares": []}))
    assert [share.pod for share in judgement.shares] == ["old"]


def test_an_audit_with_gaps_is_no_proof() -> None:
    judgement = verdict(answers.audit(NODE) | {"problem": "the driver does not tell processes", "blind": True})
    assert (judgement.broken, judgement.uncertain) == (False, True)
    assert judgement.nodes[0].reason == "the driver does not tell processes"
    enough = verdict(answers.audit(NODE) | {"problem": "contexts are not charged"})
    assert not enough.uncertain  # as the agent says


def test_without_an_answer_the_condition_counts_while_its_agent_runs() -> None:
    by_condition = auditing.check([saying("True")], {}, ready={NODE.name})
    assert (by_condition.broken, by_condition.uncertain) == (False, False)
    assert by_condition.containers(AuditState.CONDITION) == 4
    for node, ready in ((saying("True"), {"other"}), (saying("Unknown"), {NODE.name}), (NODE, {NODE.name})):
        judgement = auditing.check([node], {}, ready=ready)
        assert (judgement.broken, judgement.uncertain) == (False, True)
        assert judgement.containers(AuditState.UNKNOWN) == 4


def test_a_condition_that_says_no_is_believed() -> None:
    for ready in ((), {NODE.name}):
        judgement = auditing.check([saying("False", message="pid 5 has no limit")], {}, ready=ready)
        assert judgement.broken
        assert judgement.nodes[0].reason == "pid 5 has no limit"


def test_an_answer_is_read_whole_or_not_at_all() -> None:
    for text in ("", "[]", "{}", '{"node": "a", "checkedAt": 1, "gpus": [{"processes": [{}]}], "shares": []}'):
        try:
            audits.read(text)
        except ValueError:
            continue
        raise AssertionError(text)
