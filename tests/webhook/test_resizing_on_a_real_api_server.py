"""Pods that request another amount, with real processes; the test acts as the agent."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from gpushare import codec, contract, ledger
from lab import lab_errors
from tests import builders
from tests.builders import GIB
from tests.webhook.conftest import Cluster
from tests.webhook.replica import REPOSITORY, until

pytestmark = pytest.mark.apiserver


def create(cluster: Cluster, name: str, *, binds: bool = True, **asked: str) -> None:
    cluster.create_placed(builders.pod(name, **asked))
    until(cluster.is_settled, cluster.explain)
    if binds:
        cluster.bind(name)


def ask(cluster: Cluster, name: str, **asked: str) -> None:
    """Change a pod's annotations, as a user would."""
    changes = {f"{contract.PREFIX}{key}": value for key, value in asked.items()}
    cluster.administrator.patch(f"{cluster.path}/pods/{name}", {"metadata": {"annotations": changes}})


def annotations(cluster: Cluster, name: str) -> dict[str, str]:
    values: dict[str, str] = cluster.pod(name)["metadata"]["annotations"]
    return values


def held(cluster: Cluster, name: str) -> tuple[int, int, int | None]:
    """Return request in percent, memory in GiB and the target of a shrink in GiB."""
    node = cluster.node()
    assert ledger.violations(node) == []
    (entry,) = (
        allocation
        for allocation in node.allocations
        if allocation.pod.name == name and not allocation.is_backfill_reservation
    )
    (share,) = entry.shares
    less = share.shrink_to_bytes
    return share.request_percent, share.memory_bytes // GIB, None if less is None else less // GIB


def say(cluster: Cluster, name: str, *, gib: float, used: float) -> None:
    """Write the agent's answer."""
    (identity,) = (allocation.id for allocation in cluster.node().allocations if allocation.pod.name == name)
    word = {"allocation": identity, "share": 0, "memory": int(gib * GIB), "used": int(used * GIB)}
    says(cluster, [word])


def says(cluster: Cluster, words: list[dict[str, Any]]) -> None:
    cluster.change("node-a", {"status": {"resizes": words}}, "status")


def reason(cluster: Cluster, name: str) -> str:
    return annotations(cluster, name).get(contract.REASON, "")


def test_a_share_grows_at_once_where_there_is_room_and_nothing_else_is_written(cluster: Cluster) -> None:
    cluster.start()
    create(cluster, "one", request="0.3", memory="25%")
    version = cluster.node().version
    cluster.administrator.patch(f"{cluster.path}/pods/one", {"metadata": {"labels": {"touched": "yes"}}})
    ask(cluster, "one", request="0.6", limit="0.8", memory="40Gi")
    until(lambda: held(cluster, "one") == (60, 40, None), cluster.explain)
    assert int(cluster.node().version) > int(version)
    assert not {contract.REASON, contract.HELD} & set(annotations(cluster, "one"))
    until(
        lambda: (
            cluster.notes(contract.EVENT_RESIZED)
            == ["has 0.6 GPU (limit 0.8) with 40Gi now, as its annotations request"]
        ),
        cluster.explain,
    )


def test_resize_waits_and_grows_when_another_pod_leaves(cluster: Cluster) -> None:
    started = cluster.start()
    for name in ("one", "two"):
        create(cluster, name, request="0.4", memory="40Gi", uuid="GPU-node-a-0")
    ask(cluster, "one", request="0.7")
    said = "is not resized yet: node-a/0 has 0.2 of its compute free, 0.3 more is requested"
    until(lambda: reason(cluster, "one") == said, cluster.explain)
    (share,) = codec.read_shares(annotations(cluster, "one")[contract.HELD])
    assert (share.request_percent, share.memory_bytes) == (40, 40 * GIB)
    until(lambda: said in cluster.notes(contract.EVENT_RESIZE_WAITS), cluster.explain)
    assert started.metric("gpushare_placer_resizes_waiting") == 1
    cluster.delete("two")
    until(lambda: held(cluster, "one") == (70, 40, None), cluster.explain)
    until(lambda: not {contract.REASON, contract.HELD} & set(annotations(cluster, "one")), cluster.explain)
    until(lambda: started.metric("gpushare_placer_resizes_waiting") == 0, cluster.explain)
    assert started.metric("gpushare_placer_resized_total") == 1


def test_growing_share_comes_before_gated_pods(cluster: Cluster) -> None:
    cluster.start()
    for name in ("one", "two"):
        create(cluster, name, request="0.5", memory="40Gi", uuid="GPU-node-a-0")
    cluster.create(builders.pod("gated", request="0.5", memory="40Gi", uuid="GPU-node-a-0"))
    ask(cluster, "one", request="0.9")
    until(lambda: "0.4 more is requested" in reason(cluster, "one"), cluster.explain)
    cluster.delete("two")
    until(lambda: held(cluster, "one") == (90, 40, None), cluster.explain)
    assert contract.ALLOCATION not in annotations(cluster, "gated")
    ask(cluster, "one", request="0.5")
    until(lambda: contract.ALLOCATION in annotations(cluster, "gated"), cluster.explain)


def test_memory_shrinks_in_two_steps_also_when_the_placer_dies_between_them(cluster: Cluster) -> None:
    first = cluster.start()
    create(cluster, "one", request="0.5", memory="40Gi")
    ask(cluster, "one", memory="10Gi")
    until(lambda: held(cluster, "one") == (50, 40, 10), cluster.explain)
    until(lambda: "the agent on node-a does not enforce 10Gi yet" in reason(cluster, "one"), cluster.explain)
    cluster.kill(first)
    cluster.front.ports.remove(first.port)
    say(cluster, "one", gib=40, used=15.5)
    second = cluster.start()
    until(lambda: "it uses 15.5Gi, more than the requested 10Gi" in reason(cluster, "one"), cluster.explain, seconds=60)
    assert held(cluster, "one") == (50, 40, 10)
    cluster.kill(second)
    cluster.front.ports.remove(second.port)
    say(cluster, "one", gib=10, used=9)
    cluster.start()
    until(lambda: held(cluster, "one") == (50, 10, None), cluster.explain, seconds=60)
    until(lambda: not {contract.REASON, contract.HELD} & set(annotations(cluster, "one")), cluster.explain)
    until(
        lambda: cluster.notes(contract.EVENT_RESIZED) == ["has 0.5 GPU with 10Gi now, as its annotations request"],
        cluster.explain,
    )


def test_a_pod_gives_nothing_up_before_it_is_bound(cluster: Cluster) -> None:
    cluster.start()
    create(cluster, "one", binds=False, request="0.5", memory="40Gi")
    ask(cluster, "one", request="0.2")
    until(lambda: "it is not bound to its node yet" in reason(cluster, "one"), cluster.explain)
    assert held(cluster, "one") == (50, 40, None)
    cluster.bind("one")
    until(lambda: held(cluster, "one") == (20, 40, None), cluster.explain)
    until(lambda: not {contract.REASON, contract.HELD} & set(annotations(cluster, "one")), cluster.explain)


def test_withdrawn_resize_leaves_no_trace(cluster: Cluster) -> None:
    cluster.start()
    create(cluster, "one", request="0.5", memory="40Gi")
    ask(cluster, "one", memory="10Gi")
    until(lambda: held(cluster, "one") == (50, 40, 10), cluster.explain)
    say(cluster, "one", gib=10, used=0)
    ask(cluster, "one", memory="40Gi")
    until(lambda: held(cluster, "one") == (50, 40, None), cluster.explain)
    until(lambda: not {contract.REASON, contract.HELD} & set(annotations(cluster, "one")), cluster.explain)


def test_invalid_annotation_is_reported_and_changes_nothing(cluster: Cluster) -> None:
    cluster.start()
    create(cluster, "one", request="0.5")
    ask(cluster, "one", limit="0.4")
    until(lambda: 'gpushare.io/limit "0.4" is less than the request' in reason(cluster, "one"), cluster.explain)
    assert held(cluster, "one") == (50, 40, None)
    with pytest.raises(lab_errors.LabError, match="is managed by gpushare"):
        ask(cluster, "one", held="[]")
    cluster.administrator.patch(f"{cluster.path}/pods/one", {"metadata": {"annotations": {contract.LIMIT: None}}})
    until(lambda: not {contract.REASON, contract.HELD} & set(annotations(cluster, "one")), cluster.explain)
    assert cluster.notes(contract.EVENT_RESIZED) == []


def test_lost_ledger_is_restored_with_held_and_not_requested_amounts(cluster: Cluster) -> None:
    first = cluster.start("--reservation-seconds=3")
    for name in ("one", "two"):
        create(cluster, name, request="0.4", memory="40Gi", uuid="GPU-node-a-0")
    ask(cluster, "one", request="0.9")
    ask(cluster, "two", memory="10Gi")
    for name in ("one", "two"):
        until(lambda name=name: contract.HELD in annotations(cluster, name), cluster.explain)  # type: ignore[misc]
    before = {name: held(cluster, name)[:2] for name in ("one", "two")}
    # No process is left that remembers it.
    cluster.kill(first)
    cluster.front.ports.remove(first.port)
    cluster.delete_gpunode()
    cluster.remake(builders.node())
    cluster.start("--reservation-seconds=3")
    until(lambda: len(cluster.node().allocations) == 2, cluster.explain, seconds=60)
    assert {name: held(cluster, name)[:2] for name in ("one", "two")} == before
    until(lambda: held(cluster, "two") == (40, 40, 10), cluster.explain)


def test_share_does_not_grow_beyond_its_quota(cluster: Cluster) -> None:
    cluster.start()
    create(cluster, "one", request="0.5", memory="40Gi")
    hard = {f"requests.{contract.RESOURCE_PERCENT}": "60"}
    cluster.administrator.create(
        f"{cluster.path}/resourcequotas", {"metadata": {"name": "share"}, "spec": {"hard": hard}}
    )
    ask(cluster, "one", request="0.8")
    said = f"the ResourceQuota of its namespace leaves 10 of {contract.RESOURCE_PERCENT}, but 30 more are requested"
    until(lambda: said in reason(cluster, "one"), cluster.explain)
    ask(cluster, "one", request="0.6")
    until(lambda: held(cluster, "one") == (60, 40, None), cluster.explain)


def resize(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    """Run `kubectl gpushare resize` in this cluster."""
    command = (sys.executable, "-m", "kubectl_gpushare", "resize", "--namespace", cluster.namespace, *arguments)
    administrator = cluster.administrator
    variables = {"KUBECONFIG": str(administrator.kubeconfig), "KUBECTL_PATH": str(administrator.kubectl_program)}
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_plugin_requests_a_rotation_and_reports_the_result(cluster: Cluster) -> None:
    cluster.start()
    create(cluster, "one", request="0.5", memory="40Gi")
    more = resize(cluster, "one", "--request", "0.75", "--memory", "60Gi")
    assert more.communicate(timeout=90) == ("pod/one holds 0.75 GPU with 60Gi\n", "")
    assert held(cluster, "one") == (75, 60, None)
    less = resize(cluster, "one", "--memory", "10Gi")
    until(lambda: held(cluster, "one") == (75, 60, 10), cluster.explain, seconds=60)  # it runs kubectl first
    say(cluster, "one", gib=60, used=20)
    out, err = less.communicate(timeout=90)
    assert (less.returncode, out) == (1, "")
    assert "error: it uses 20Gi, more than the requested 10Gi; the annotations are restored" in err
    until(lambda: held(cluster, "one") == (75, 60, None), cluster.explain)
    assert annotations(cluster, "one")[contract.MEMORY] == "60Gi"
    too_much = resize(cluster, "one", "--memory", "90Gi")
    _, err = too_much.communicate(timeout=90)
    assert too_much.returncode == 2
    assert "nothing was changed: node-a/0 has 20Gi of memory free, 30Gi more are requested" in err.replace("\n", " ")
