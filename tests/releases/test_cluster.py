"""A cluster of the previous release, with its real programs and manifests, is upgraded in place and downgraded
again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract, ledger
from gpushare.allocation import ALL_STEPS, Allocation
from gpushare.gpunode import GpuNode
from lab import access
from tests import builders
from tests.builders import GIB
from tests.config.test_crd import full_node
from tests.releases.programs import ledgers
from tests.releases.release import BEFORE
from tests.webhook import conftest
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver


@pytest.fixture
def base_before(tmp_path: Path) -> Path:
    """Return the previous release's manifests."""
    programs = BEFORE.python_path[0]
    with zipfile.ZipFile(programs) as archive:
        archive.extractall(tmp_path, [name for name in archive.namelist() if name.startswith("config/")])
    return tmp_path / "config" / "base"


@pytest.fixture
def manifests(manifests: access.Access, base_before: Path) -> access.Access:
    """The previous release's manifests, for the cluster at the start of a test."""
    conftest.apply(manifests, base_before)
    return manifests


def document(cluster: Cluster) -> dict[str, Any]:
    return cluster.administrator.read(f"{contract.GPUNODE_PATH}/node-a")


def annotations(cluster: Cluster, name: str) -> dict[str, str]:
    notes: dict[str, str] = cluster.pod(name)["metadata"]["annotations"]
    return notes


def held(node: GpuNode) -> dict[str, Allocation]:
    """Return what pods hold, by name; a backfill reservation by the name of the pod it is for."""
    return {allocation.pod.name: allocation for allocation in node.allocations}


def ask(cluster: Cluster, name: str, **asked: str) -> None:
    changes = {contract.PREFIX + key: value for key, value in asked.items()}
    cluster.administrator.patch(f"{cluster.path}/pods/{name}", {"metadata": {"annotations": changes}})


def report_limit(cluster: Cluster, name: str, memory_bytes: int) -> None:
    """Report, as the agent, that a share's limit is enforced."""
    word = {"allocation": held(cluster.node())[name].id, "share": 0, "memory": memory_bytes, "used": 0}
    cluster.change("node-a", {"status": {"resizes": [word]}}, "status")


def fill(cluster: Cluster) -> None:
    """Fill a ledger with every kind of entry: shares of all kinds, one that shrinks, one that waits, a backfill
    reservation.
    """
    cluster.create(builders.pod("plain", request="0.5", limit="0.8", memory="10Gi", affinity="a", uuid="GPU-node-a-0"))
    cluster.create(builders.pod("quick", request="0.25", latency="true", affinity="a", uuid="GPU-node-a-0"))
    cluster.create(builders.pod("apart", request="0.25", exclusion="b", anti_affinity="c", uuid="GPU-node-a-1"))
    cluster.create(builders.pod("pair", request="0.5", gpus="2", containers=("main", "side"), container="main,side"))
    cluster.create(builders.pod("shrinks", request="0.1", memory="20Gi", uuid="GPU-node-a-2"))
    until(cluster.is_settled, cluster.explain)
    for name in ("plain", "shrinks"):  # no share is released before
        cluster.bind(name)
    ask(cluster, "shrinks", memory="15Gi")
    until(lambda: held(cluster.node())["shrinks"].shares[0].shrink_to_bytes == 15 * GIB, cluster.explain)
    cluster.create(builders.pod("waits", request="1", gpus="2"))
    until(lambda: bool(cluster.notes(contract.EVENT_GATED)), cluster.explain)
    # A pod created in a later second overtakes it; then it has waited long enough.
    time.sleep(1.0)
    cluster.create(builders.pod("passes", request="0.1", memory="1Gi", uuid="GPU-node-a-2"))
    until(
        lambda: any(allocation.id.startswith(contract.BACKFILL_PREFIX) for allocation in cluster.node().allocations),
        cluster.explain,
    )
    until(
        lambda: all(
            allocation.reserved_until is None or is_backfill_reservation(allocation)
            for allocation in cluster.node().allocations
        )
    )


def keep_ledger(gpunode: dict[str, Any], pods: list[dict[str, Any]]) -> None:
    """Save the ledger to the path in GPUSHARE_KEEP_LEDGER, as README.md describes."""
    if "GPUSHARE_KEEP_LEDGER" in os.environ:
        items = [gpunode, *({"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods)]  # lists omit them
        for item in items:
            item["metadata"].pop("managedFields", None)
        kept = {"apiVersion": "v1", "kind": "List", "items": items}
        Path(os.environ["GPUSHARE_KEEP_LEDGER"]).write_text(f"{json.dumps(kept, indent=1, sort_keys=True)}\n")


def is_backfill_reservation(entry: Allocation) -> bool:
    return entry.id.startswith(contract.BACKFILL_PREFIX)


def stays(condition: Callable[[], bool], explain: Callable[[], object], *, seconds: float = 3.0) -> None:
    """Whether it is so, now and after the placer has run several times."""
    with pytest.raises(AssertionError, match="it has changed"):
        until(lambda: not condition(), lambda: "it has changed", seconds=seconds)
    assert condition(), explain()


def given(node: GpuNode) -> dict[str, Allocation]:
    """Return what pods hold, without backfill reservations, which the placer grows and shrinks."""
    return {name: entry for name, entry in held(node).items() if not is_backfill_reservation(entry)}


PATIENCE = "--patience-seconds=1"


def test_upgrade_and_downgrade_in_place_keep_every_share(cluster: Cluster, base_before: Path) -> None:
    old = cluster.start(PATIENCE, environment=BEFORE.environment)
    fill(cluster)
    assert old.stop() == 0
    cluster.front.ports.clear()
    before = document(cluster)
    keep_ledger(before, cluster.pods())
    meant = given(codec.read(before))
    assert set(meant) == {"plain", "quick", "apart", "pair", "shrinks", "passes"}

    # Apply the CRD first, with everything else; this writes no ledger.
    conftest.apply(cluster.administrator)
    after = document(cluster)
    assert (after["spec"], after["status"]) == (before["spec"], before["status"])
    assert codec.read(after).problems == ()
    new = cluster.start(PATIENCE)
    stays(lambda: given(cluster.node()) == meant, cluster.explain)
    assert cluster.notes(contract.EVENT_LOST) == cluster.notes(contract.EVENT_ADOPTED) == []
    assert contract.ALLOCATION not in annotations(cluster, "waits")
    assert any(map(is_backfill_reservation, cluster.node().allocations))

    # The new release completes what the old one began; those pods are like any others.
    report_limit(cluster, "shrinks", 15 * GIB)
    until(lambda: held(cluster.node())["shrinks"].shares[0].memory_bytes == 15 * GIB, cluster.explain)
    ask(cluster, "plain", request="0.4")
    until(lambda: held(cluster.node())["plain"].shares[0].request_percent == 40, cluster.explain)
    cluster.create(builders.pod("newcomer", request="0.05", memory="1Gi", affinity="a", uuid="GPU-node-a-0"))
    until(lambda: "newcomer" in held(cluster.node()), cluster.explain)
    cluster.bind("newcomer")
    ask(cluster, "newcomer", memory="512Mi")
    until(lambda: held(cluster.node())["newcomer"].shares[0].shrink_to_bytes == GIB // 2, cluster.explain)
    assert new.stop() == 0
    cluster.front.ports.clear()

    # Downgrade in the opposite order, programs first.
    meant = given(cluster.node())
    read = BEFORE.run(ledgers.reads, document(cluster))
    assert read["problems"] == []
    assert given(codec.read({"metadata": {"name": "node-a"}, "spec": read["spec"]})) == meant
    back = cluster.start(PATIENCE, environment=BEFORE.environment)
    conftest.apply(cluster.administrator, base_before)
    stays(lambda: given(cluster.node()) == meant, cluster.explain)
    assert cluster.notes(contract.EVENT_LOST) == cluster.notes(contract.EVENT_ADOPTED) == []
    for name in meant:
        cluster.delete(name)
    until(lambda: contract.ALLOCATION in annotations(cluster, "waits"), cluster.explain)
    assert back.stop() == 0


def test_the_previous_schema_accepts_every_field_of_this_release(cluster: Cluster, base_before: Path) -> None:
    conftest.apply(cluster.administrator)
    node = dataclasses.replace(full_node("node-b"), version="")
    cluster.add_node(node)
    stored = cluster.node("node-b")
    assert (stored.allocations, stored.gpus, stored.resizes) == (node.allocations, node.gpus, node.resizes)

    conftest.apply(cluster.administrator, base_before)
    shown = cluster.administrator.read(f"{contract.GPUNODE_PATH}/node-b")
    read = BEFORE.run(ledgers.reads, shown)
    assert read["problems"] == []
    assert [allocation["id"] for allocation in read["spec"]["allocations"]] == [entry.id for entry in node.allocations]
    # It writes what it read, as it would with the next allocation.
    cluster.change("node-b", {"spec": read["spec"]})
    cluster.change("node-b", read, "status")

    conftest.apply(cluster.administrator)
    again = cluster.node("node-b")
    assert again.problems == ()
    assert ledger.violations(again) == ledger.violations(node)
    # It dropped the steps, MIG devices and memory limits, which it does not know, so all shares count at once.
    dropped = {"steps": ALL_STEPS, "mig": None, "memory_limit_bytes": None}
    assert [(allocation.id, allocation.pod, allocation.shares) for allocation in again.allocations] == [
        (entry.id, entry.pod, tuple(dataclasses.replace(share, **dropped) for share in entry.shares))
        for entry in node.allocations
    ]
