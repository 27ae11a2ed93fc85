"""The wall clock of one webhook jumps by an hour, forth and back, while reservations wait for their pods."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gpushare import contract
from tests import builders
from tests.webhook.conftest import Cluster
from tests.webhook.replica import REPOSITORY, until

pytestmark = pytest.mark.apiserver

LIFETIME_SECONDS = 6


def reserve(cluster: Cluster, identity: str, *, until_seconds: float) -> None:
    """As a replica would whose clock is right, for a pod that is on its way."""
    entry = {
        "id": identity,
        "pod": {"namespace": cluster.namespace, "name": identity},
        "shares": [{"containers": ["main"], "gpus": ["GPU-node-a-0"], "request": 10, "limit": 100, "memory": 1 << 30}],
        "reservedUntil": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() + until_seconds)),
    }
    patch = json.dumps([{"op": "add", "path": "/spec/allocations/-", "value": entry}])
    cluster.kubectl("patch", "gpunode", "node-a", "--type=json", f"--patch={patch}")


def held(cluster: Cluster) -> set[str]:
    return {entry.id for entry in cluster.node().allocations}


@pytest.mark.parametrize("hours", [1, -1])
def test_a_reservation_lasts_its_lifetime_whatever_a_clock_says(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    clock = tmp_path / "clock"
    clock.write_text("0")
    monkeypatch.setenv("GPUSHARE_TEST_CLOCK", str(clock))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "tests" / "webhook" / "shifted"))
    placer = cluster.start(f"--reservation-seconds={LIFETIME_SECONDS}")
    monkeypatch.delenv("PYTHONPATH")
    other = cluster.start("--no-placer", f"--reservation-seconds={LIFETIME_SECONDS}")
    until(lambda: placer.metric("gpushare_placer_leads") == 1, placer.explain)
    cluster.create(builders.pod("lives", request="0.5"))
    until(cluster.is_settled, cluster.explain)

    reserve(cluster, "reserved", until_seconds=LIFETIME_SECONDS)
    began = time.monotonic()
    clock.write_text(str(hours * 3600))
    cluster.create(builders.pod("during", request="0.1"))  # whichever replica; the placer is woken
    while time.monotonic() - began < LIFETIME_SECONDS - 3:
        assert "reserved" in held(cluster)  # not ended early
    until(lambda: "reserved" not in held(cluster), cluster.explain, seconds=LIFETIME_SECONDS + 10)  # nor kept an hour
    until(cluster.is_settled, cluster.explain)
    assert {entry.pod.name for entry in cluster.node().allocations} == {"lives", "during"}

    for number in range(4):  # and gated pods have their turns
        cluster.create(builders.pod(f"whole-{number}", request="1"))
    waiting = [one["metadata"]["name"] for one in cluster.pods() if one["spec"].get("schedulingGates")]
    assert waiting
    cluster.delete("lives")
    cluster.delete("during")
    until(lambda: not any(one["spec"].get("schedulingGates") for one in cluster.pods()), cluster.explain)
    until(cluster.is_settled, cluster.explain)
    assert all(contract.ALLOCATION in one["metadata"]["annotations"] for one in cluster.pods())
    assert other.process.poll() is None
