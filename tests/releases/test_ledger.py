"""The previous release's ledger is read and written by this release, and this release's ledger by the previous one."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract, ledger
from gpushare.allocation import ALL_STEPS, Allocation, Isolation, Steps
from gpushare.gpunode import GpuNode, Mode, Resize
from tests import builders
from tests.builders import GIB
from tests.config.test_crd import full_node
from tests.releases.programs import ledgers
from tests.releases.release import BEFORE, HERE, ROOT, THIS
from tests.webhook import replica

LEDGER = HERE / BEFORE.name / "ledger.json"


def objects(kind: str) -> list[dict[str, Any]]:
    return [item for item in json.loads(LEDGER.read_text())["items"] if item["kind"] == kind]


@pytest.fixture
def kept() -> dict[str, Any]:
    (gpunode,) = objects(contract.GPUNODE_KIND)
    return gpunode


def by_name(node: GpuNode) -> dict[str, Allocation]:
    return {allocation.pod.name: allocation for allocation in node.allocations}


def test_the_previous_releases_ledger_keeps_its_meaning(kept: dict[str, Any]) -> None:
    node = codec.read(kept)
    assert node.problems == node.unread == ()
    assert ledger.violations(node) == []
    entries = by_name(node)
    assert set(entries) == {"plain", "quick", "apart", "pair", "shrinks", "passes", "waits"}
    amounts = {
        name: (entry.shares[0].request_percent, entry.shares[0].limit_percent, entry.shares[0].memory_bytes // GIB)
        for name, entry in entries.items()
        if name != "waits"
    }
    assert amounts == {
        "plain": (50, 80, 10),
        "quick": (25, 100, 20),
        "apart": (25, 100, 20),
        "pair": (50, 100, 40),
        "shrinks": (10, 100, 20),
        "passes": (10, 100, 1),
    }
    assert entries["quick"].latency
    assert (entries["plain"].labels.affinity, entries["apart"].labels.anti_affinity) == ("a", "c")
    assert entries["apart"].labels.exclusion == "b"
    assert len(entries["pair"].shares[0].gpu_uuids) == 2
    assert entries["pair"].shares[0].containers == ("main", "side")
    assert entries["shrinks"].shares[0].shrink_to_bytes == 15 * GIB
    assert entries["waits"].id.startswith(contract.BACKFILL_PREFIX)


def test_the_previous_releases_ledger_is_written_back_unchanged(kept: dict[str, Any]) -> None:
    assert codec.to_spec(codec.read(kept)) == kept["spec"]


def test_both_releases_read_the_ledger_alike(kept: dict[str, Any]) -> None:
    read = BEFORE.run(ledgers.reads, kept)
    assert (read["problems"], read["violations"]) == ([], [])
    assert read["spec"] == kept["spec"]


def test_the_previous_release_reads_changes_by_this_one(kept: dict[str, Any]) -> None:
    node = codec.read(kept)
    entry = builders.allocation("new", "GPU-node-a-2", request=5, memory_gib=1, pod_name="newcomer", uid="u9")
    changed = dataclasses.replace(node, allocations=(*node.allocations, entry))
    read = BEFORE.run(ledgers.reads, codec.to_document(changed))
    assert (read["problems"], read["violations"]) == ([], [])
    assert codec.read({"metadata": {"name": "node-a"}, "spec": read["spec"]}).allocations == changed.allocations


def test_the_previous_release_reads_every_field_of_this_one() -> None:
    node = full_node()
    read = BEFORE.run(ledgers.reads, codec.to_document(node))
    assert read["problems"] == []
    again = codec.read({"metadata": {"name": node.name}, "spec": read["spec"], "status": read["status"]})
    # It does not know steps, so all shares of a pod count at once; nor isolation and MIG devices, so all have leases;
    # nor memory limits, so nothing is lent, and a GPU has only the memory that is not lent;
    # nor owners, so a GPU of another device plugin takes no shares.
    held = [
        (
            allocation.id,
            allocation.pod,
            tuple(
                dataclasses.replace(share, steps=ALL_STEPS, memory_limit_bytes=None, mig=None)
                for share in allocation.shares
            ),
            dataclasses.replace(allocation.labels, isolation=Isolation.ARBITER),
        )
        for allocation in node.allocations
    ]
    assert [
        (allocation.id, allocation.pod, allocation.shares, allocation.labels) for allocation in again.allocations
    ] == held
    lent = node.lent_by_gpu()
    assert any(lent.values())
    assert [(gpu.uuid, gpu.memory_bytes + lent.get(gpu.uuid, 0), gpu.mode, gpu.healthy) for gpu in again.gpus] == [
        (gpu.uuid, gpu.memory_bytes, Mode.EXCLUSIVE if gpu.owner else gpu.mode, gpu.healthy) for gpu in node.gpus
    ]


def test_the_previous_release_counts_sequential_shares_at_once() -> None:
    entry = builders.allocation("a", request=80, memory_gib=8, uid="u")
    (warm,) = entry.shares
    main = dataclasses.replace(warm, containers=("app",), request_percent=70, steps=Steps(1))
    in_turn = dataclasses.replace(entry, shares=(dataclasses.replace(warm, steps=Steps(0, 0)), main))
    node = ledger.reserve(builders.node(gpus=1), in_turn)
    assert ledger.violations(node) == []
    read = BEFORE.run(ledgers.reads, codec.to_document(node))
    assert read["problems"] == []
    assert read["violations"] == [
        "node-a/0 (GPU-node-a-0) is over-committed: 150% of its compute is held by default/trainer"
    ]


def test_both_releases_read_the_shares_annotation() -> None:
    (pod,) = [manifest for manifest in objects("Pod") if manifest["metadata"]["name"] == "shrinks"]
    text = pod["metadata"]["annotations"][contract.HELD]
    shares = codec.read_shares(text)
    assert (len(shares), shares[0].memory_bytes) == (1, 20 * GIB)
    assert codec.shares_text(shares) == text
    assert BEFORE.run(ledgers.reads_shares, codec.shares_text(shares)) == text


@pytest.mark.slow
def test_placement_continues_after_upgrade_and_downgrade(kept: dict[str, Any], tmp_path: Path) -> None:
    meant = {name: entry for name, entry in by_name(codec.read(kept)).items() if name != "waits"}
    # In memory there is no agent to wait for.
    shrunk = dataclasses.replace(meant["shrinks"].shares[0], memory_bytes=15 * GIB, shrink_to_bytes=None)
    meant["shrinks"] = dataclasses.replace(meant["shrinks"], shares=(shrunk,))
    source = LEDGER
    for step, release in enumerate((BEFORE, THIS, BEFORE)):
        state = tmp_path / f"state-{step}.json"
        flags = (f"--from={source}", f"--state={state}")
        with replica.running(tmp_path / f"webhook-{step}", *flags, environment=release.environment) as webhook:
            replica.until(state.exists, webhook.explain)
            assert webhook.stop() == 0
        document = json.loads(state.read_text())
        (gpunode,) = [item for item in document["items"] if item["kind"] == contract.GPUNODE_KIND]
        # Earlier releases read no ConfigMap, in which later ones save the placement profile.
        items = [item for item in document["items"] if item["kind"] != "ConfigMap"]
        state.write_text(json.dumps({**document, "items": items}))
        entries = by_name(codec.read(gpunode))
        assert {name: entries.get(name) for name in meant} == meant
        assert entries["waits"].id.startswith(contract.BACKFILL_PREFIX)
        source = state


@pytest.mark.slow
def test_the_plugin_shows_the_previous_releases_ledger() -> None:
    command = [sys.executable, "-m", "kubectl_gpushare", "top", "pods", "-A", "--from", str(LEDGER)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60).stdout
    for name in ("plain", "quick", "apart", "pair", "shrinks", "passes"):
        assert name in shown


def test_the_previous_release_gives_no_share_to_a_pod_of_an_elastic_gang() -> None:
    elastic = builders.pod("worker", request="1", group="ring", group_size="2-8")
    assert THIS.run(ledgers.request_error, elastic) == ""
    assert BEFORE.run(ledgers.request_error, elastic).startswith('gpushare.io/group-size "2-8" is not a count')


def test_a_nomination_is_a_backfill_reservation_for_the_previous_release(kept: dict[str, Any]) -> None:
    assert contract.PREEMPTION_PREFIX.startswith(contract.BACKFILL_PREFIX)
    node = codec.read(kept)
    waiting = by_name(node)["waits"]
    nominated = dataclasses.replace(
        waiting, id=waiting.id.replace(contract.BACKFILL_PREFIX, contract.PREEMPTION_PREFIX)
    )
    others = tuple(entry for entry in node.allocations if entry.id != waiting.id)
    document = codec.to_document(dataclasses.replace(node, allocations=(*others, nominated)))
    for release in (BEFORE, THIS):
        read = release.run(ledgers.reads, document)
        assert (read["problems"], read["violations"]) == ([], [])
        assert nominated.id in {entry["id"] for entry in read["spec"]["allocations"]}


def with_loan() -> GpuNode:
    """Build a node of one GPU with 80 GiB, of which 20 are a share's own and 40 are lent to it."""
    borrower = builders.allocation("borrower", request=10, memory_gib=20, uid="u1")
    shares = (dataclasses.replace(borrower.shares[0], memory_limit_bytes=70 * GIB),)
    node = ledger.reserve(builders.node(gpus=1, memory_gib=80), dataclasses.replace(borrower, shares=shares))
    return dataclasses.replace(node, resizes=(Resize("borrower", 0, 60 * GIB, 60 * GIB),))


@pytest.mark.parametrize(("memory_gib", "fits"), [(20, True), (21, False)])
def test_the_previous_release_does_not_give_lent_memory_to_another_pod(memory_gib: int, fits: bool) -> None:
    document = codec.to_document(with_loan())
    entry = builders.allocation("new", request=10, memory_gib=memory_gib, uid="u2")
    document["spec"] = codec.to_spec(dataclasses.replace(with_loan(), allocations=(*with_loan().allocations, entry)))
    assert (BEFORE.run(ledgers.reads, document)["violations"] == []) is fits
    assert (ledger.violations(codec.read(document)) == []) is fits


def test_lent_memory_counts_after_an_agent_of_the_previous_release_has_written_the_status() -> None:
    node = with_loan()
    document = codec.to_document(node)
    written = BEFORE.run(ledgers.reads, document)["status"]
    written["gpus"][0]["memory"] = 80 * GIB  # as its driver says
    written["resizes"] = []  # no share is to shrink
    document["status"] |= written  # a merge patch
    again = codec.read(document)
    assert again.gpus == node.gpus
    assert ledger.use(again) == ledger.use(node)
    # The next agent of this release sees what the share has, and writes both lists.
    assert codec.read(codec.to_document(again)) == again
