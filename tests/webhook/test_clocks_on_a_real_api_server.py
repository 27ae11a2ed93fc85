"""The wall clock of one webhook jumps by an hour, both ways, while reservations wait for their pods."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpushare import contract
from tests import builders
from tests.clock import clocks
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver

LIFETIME_SECONDS = 6


@pytest.fixture
def clock(tmp_path: Path) -> clocks.Clock:
    return clocks.Clock(tmp_path / "clock")


def reserve(cluster: Cluster, identity: str, *, until_seconds: float) -> None:
    """Reserve a share for a pod in flight, as a replica with a correct clock would."""
    entry = {
        "id": identity,
        "pod": {"namespace": cluster.namespace, "name": identity},
        "shares": [{"containers": ["main"], "gpus": ["GPU-node-a-0"], "request": 10, "limit": 100, "memory": 1 << 30}],
        "reservedUntil": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() + until_seconds)),
    }
    cluster.change("node-a", [{"op": "add", "path": "/spec/allocations/-", "value": entry}])


def held(cluster: Cluster) -> set[str]:
    return {entry.id for entry in cluster.node().allocations}


@pytest.mark.parametrize("hours", [1, -1])
def test_reservation_lasts_its_lifetime_despite_wrong_clocks(cluster: Cluster, clock: clocks.Clock, hours: int) -> None:
    placer = cluster.start(f"--reservation-seconds={LIFETIME_SECONDS}", environment={**os.environ, **clock.environment})
    other = cluster.start("--no-placer", f"--reservation-seconds={LIFETIME_SECONDS}")
    until(lambda: placer.metric("gpushare_placer_leads") == 1, placer.explain)
    cluster.create(builders.pod("lives", request="0.5"))
    until(cluster.is_settled, cluster.explain)

    began = time.monotonic()  # each replica sees the reservation later, and may expire it as much later
    reserve(cluster, "reserved", until_seconds=LIFETIME_SECONDS)
    clock.set(hours * 3600)
    cluster.create(builders.pod("during", request="0.1"))  # on either replica; the placer is woken
    while True:
        is_there = "reserved" in held(cluster)
        if time.monotonic() - began >= LIFETIME_SECONDS:
            break
        assert is_there  # not ended early
        time.sleep(0.05)
    until(lambda: "reserved" not in held(cluster), cluster.explain, seconds=LIFETIME_SECONDS + 10)  # nor kept an hour
    until(cluster.is_settled, cluster.explain)
    assert {entry.pod.name for entry in cluster.node().allocations} == {"lives", "during"}

    for number in range(4):  # and gated pods have their turns
        cluster.create(builders.pod(f"whole-{number}", request="1"))
    waiting = [pod["metadata"]["name"] for pod in cluster.pods() if pod["spec"].get("schedulingGates")]
    assert waiting
    cluster.delete("lives")
    cluster.delete("during")
    until(lambda: not any(pod["spec"].get("schedulingGates") for pod in cluster.pods()), cluster.explain)
    until(cluster.is_settled, cluster.explain)
    assert all(contract.ALLOCATION in pod["metadata"]["annotations"] for pod in cluster.pods())
    assert other.process.poll() is None


def test_clock_that_was_set_back_causes_no_reissue(cluster: Cluster, clock: clocks.Clock) -> None:
    looking_often = "--rotation-seconds=6"
    set_wrong = cluster.start(looking_often, environment={**os.environ, **clock.environment})
    right = cluster.start(looking_often)
    served = len(set_wrong.logged("Loaded a certificate")), len(right.logged("Loaded a certificate"))
    clock.set(-3600)
    for number in range(6):  # for longer than it takes to look again, which is once in 0.4 s
        cluster.create(builders.pod(f"pod-{number}", request="0.05"))  # on either replica
    until(cluster.is_settled, cluster.explain)
    assert [line for line in set_wrong.logged("Changed the certificates") if line["step"] == "start"][1:] == []
    assert (len(set_wrong.logged("Loaded a certificate")), len(right.logged("Loaded a certificate"))) == served
    assert set_wrong.probe("/readyz")[0] == right.probe("/readyz")[0] == 200
