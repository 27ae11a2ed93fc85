"""Pods that attack, as root and as nobody: an honest one on the same GPU keeps what is its own, and the node goes on."""

from __future__ import annotations

import time

import pytest

from lab import lab_layout
from tests.e2e.observation import Observer, eventually
from tests.hostile.attacks import ATTACKS
from tests.hostile.ground import Ground

pytestmark = pytest.mark.lab

REQUEST = 0.4
MEMORY_BYTES = 4 << 30
# Of a kernel of a millisecond after the other it has four tenths of a second's; on a busy machine far fewer. With the
# GPU kept from it, or a new process of its own refused, it would have none.
FEWEST_A_SECOND = 20
AGENT_BYTES = 256 << 20  # what its container may have


def test_attacks_of_two_pods_are_nothing_to_a_third_and_to_the_node(
    user: Observer, installed: lab_layout.Layout
) -> None:
    """All of them together, for as long as the node takes to do what nodes do; then those that go past the library."""
    ground = Ground(user, installed)
    ground.neighbour(request=REQUEST, memory=str(MEMORY_BYTES))
    for who in ("root", "nobody"):
        ground.attacker(who, who, request=0.2, memory="2Gi")
    before = ground.agent()
    names = [name for name, attack in ATTACKS.items() if not attack.past]
    with ground.at_it(["root", "nobody"], names) as attacking:
        begin = time.monotonic()
        ground.status_is_written()
        ground.third(request=0.1)
        # On a busy machine a newcomer takes longer: of one at least all of it is seen.
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
    with ground.at_it(["root"], ["beside"]), ground.at_it(["nobody"], ["turns"]):
        eventually(lambda: "unlimited" in ground.told("root"), seconds=90, what="the process without a limit told of")
    # And when they have gone, all is as it was.
    began = time.monotonic()
    (last,) = eventually(
        lambda: ground.said().newcomers(began, time.monotonic())[:1] or None,
        seconds=90,
        what="another process of its own",
    )
    assert last.bytes == MEMORY_BYTES
    eventually(
        lambda: not ground.told("root") and not ground.told("neighbour"),
        seconds=90,
        what="nothing held against anybody",
    )
