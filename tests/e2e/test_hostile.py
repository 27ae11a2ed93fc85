"""Attacking pods, as root and as an unprivileged user: an honest pod on the same GPU keeps its share, and the node keeps
working.
"""

from __future__ import annotations

import concurrent.futures
import time

import pytest

from lab import lab_layout
from tests.e2e.observation import Observer, eventually
from tests.hostile.attacks import ATTACKS
from tests.hostile.ground import Ground

pytestmark = pytest.mark.lab

REQUEST = 0.4
MEMORY_BYTES = 4 << 30
# With kernels of one millisecond it completes about 400 a second, on a busy machine far fewer. If the attackers kept the
# GPU from it, or its new processes were rejected, it would complete none.
FEWEST_A_SECOND = 20
AGENT_BYTES = 256 << 20  # the memory limit of its container


def test_attacks_of_two_pods_do_not_affect_a_third_or_the_node(user: Observer, installed: lab_layout.Layout) -> None:
    """All attacks at once, while the node does its usual work; then the attacks that bypass the library."""
    ground = Ground(user, installed)
    ground.neighbour(request=REQUEST, memory=str(MEMORY_BYTES))
    for who in ("root", "nobody"):
        ground.attacker(who, who, request=0.2, memory="2Gi")
    ground.wait("root", "nobody")
    before = ground.agent()
    names = [name for name, attack in ATTACKS.items() if not attack.past]
    with ground.attacking_with(["root", "nobody"], names) as attacking:
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for usual in (pool.submit(ground.status_seconds), pool.submit(ground.third, request=0.1)):
                usual.result()
        # On a busy machine new processes take longer; at least one must have completed.
        eventually(lambda: ground.said().newcomers(begin, time.monotonic()), seconds=90, what="a newcomer")
        end = time.monotonic()
    assert attacking.won == []
    assert len(attacking.rounds) == 2 * len(names), "some were not at it to the end"

    said = ground.said()
    assert len(said.delays(begin, end)) > FEWEST_A_SECOND * (end - begin)
    newcomers = said.newcomers(begin, end)
    assert newcomers, "none of its new processes got in"
    assert {newcomer.bytes for newcomer in newcomers} == {MEMORY_BYTES}, newcomers
    after = ground.agent()
    assert (after.restarts, after.pids) == (before.restarts, before.pids), "agent or arbiter was restarted"
    assert after.most_bytes < AGENT_BYTES

    ground.restart("root")
    with ground.attacking_with(["root"], ["beside"]), ground.attacking_with(["nobody"], ["turns"]):
        eventually(lambda: "unlimited" in ground.told("root"), seconds=90, what="the process without a limit told of")
    # When the attackers have gone, everything is as before.
    began = time.monotonic()
    (last,) = eventually(
        lambda: ground.said().newcomers(began, time.monotonic())[:1] or None,
        seconds=90,
        what="another process of the pod",
    )
    assert last.bytes == MEMORY_BYTES
    eventually(
        lambda: not ground.told("root") and not ground.told("neighbour"),
        seconds=90,
        what="nothing held against anybody",
    )
