"""Stories: the actions of users in a world, and the faults, from a seed, so that a failure can be repeated."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import contract, errors, request
from gpushare.allocation import Isolation
from tests import builders
from tests.webhook.laws import schedule, users, world

# How often a kind is chosen, against 1.0 for what would happen anyway.
ANYTHING: Final[Mapping[str, float]] = {
    "time": 0.05,
    "lose": 0.06,
    "fail": 0.02,
    "late": 0.05,
    "break": 0.02,
    "silence": 0.02,
    "crash": 0.02,
    "elect": 0.03,
    "jump": 0.02,
    "delete": 0.05,
    "end": 0.02,
    "agent": 0.02,
    "wait": 0.01,
    "forget": 0.01,
}
TWO_PLACERS: Final[Mapping[str, float]] = {
    "time": 0.05,
    "lose": 0.05,
    "late": 0.3,
    "elect": 0.2,
    "delete": 0.1,
    "silence": 0.03,
}

WITHOUT_GPUNODES: Final[Mapping[str, float]] = {
    "time": 0.1,
    "lose": 0.03,
    "late": 0.05,
    "break": 0.04,
    "crash": 0.03,
    "elect": 0.03,
    "delete": 0.03,
    "forget": 0.08,
    "swap": 0.01,
    "slow": 0.2,
}


def story(seed: int) -> world.World:
    """Return a world with eight pods, of which some share a name, are copied, only planned, or changed by other
    webhooks.
    """
    chance = random.Random(seed)
    asks = [_ask(chance) for _ in range(8)]
    if chance.random() < 0.5:
        asks[:4] = [*_gang(chance, "red"), *_gang(chance, "blue")]
    if seed % 3 == 2:
        return world.World(schedule.ByChance(seed, TWO_PLACERS), asks, gpus=1, nodes=2, faults=20)
    return world.World(schedule.ByChance(seed, ANYTHING), asks, gpus=1 + seed % 2, nodes=1 + seed % 4, faults=14)


def without_gpunodes(seed: int) -> world.World:
    """Return a world whose GPUNodes are deleted and recreated while pods that were placed on them are being stored."""
    chance = random.Random(seed)
    asks = [_ask(chance) for _ in range(8)]
    if chance.random() < 0.3:
        asks[:2] = _gang(chance, "red")
    order = schedule.ByChance(seed, WITHOUT_GPUNODES)
    return world.World(order, asks, gpus=1 + seed % 2, nodes=1 + seed % 2, faults=16)


def of_several_kinds(seed: int) -> world.World:
    """Return a world whose GPUs offer leases, MPS and MIG, and whose pods ask for one, or leave it to gpushare."""
    chance = random.Random(seed)
    asks = [_ask(chance) for _ in range(8)]
    if chance.random() < 0.3:
        asks[:2] = _gang(chance, "red")
    for ask in asks:
        annotations = ask.manifest["metadata"]["annotations"]
        before = {**annotations}
        if kind := chance.choice(["", "auto", "mps", "arbiter", "mig"]):
            annotations[contract.ISOLATION] = kind
        try:
            request.parse(ask.manifest)
        except errors.RequestError:  # of mig with several shares or GPUs
            ask.manifest["metadata"]["annotations"] = before
    rates = WITHOUT_GPUNODES if seed % 3 == 0 else ANYTHING
    isolations = (Isolation.ARBITER, Isolation.MPS, Isolation.MIG)
    order = schedule.ByChance(seed, rates)
    return world.World(order, asks, gpus=1 + seed % 2, nodes=1 + seed % 3, faults=14, isolations=isolations)


def single_turns(
    asks: list[users.Ask], *, kinds: frozenset[str], most_steps: int, gpus: int = 2
) -> Iterator[tuple[dict[int, int], world.World]]:
    """Yield every world that deviates from the default order at exactly one of its first steps."""

    def made(turns: dict[int, int]) -> tuple[world.World, schedule.Deviating]:
        order = schedule.Deviating(turns, kinds)
        return world.World(order, asks, faults=1, gpus=gpus), order

    plain, order = made({})
    plain.run()
    for step, width in enumerate(order.widths[:most_steps]):
        for turn in range(1, width):
            yield {step: turn}, made({step: turn})[0]


def _gang(chance: random.Random, name: str) -> list[users.Ask]:
    """Return two pods of a gang; two such gangs compete for the same GPUs."""
    request = chance.choice(["0.5", "1"])
    pods = [builders.pod(f"{name}-{number}", request=request, group=name, group_size="2") for number in range(2)]
    return [users.Ask(pod) for pod in pods]


def _ask(chance: random.Random) -> users.Ask:
    size: dict[str, Any] = {"request": chance.choice(["0.25", "0.5", "0.5", "1"])}
    if chance.random() < 0.2:
        size = {"memory": chance.choice(["20Gi", "45Gi", "25%"])}
    manifest = builders.pod(f"pod-{chance.randrange(4)}", **size)
    kind = chance.random()
    if kind < 0.3:
        manifest["metadata"]["generateName"] = "made-"
        del manifest["metadata"]["name"]
    elif kind < 0.4:
        manifest["metadata"]["name"] = "copy"
        return users.Ask(manifest, copied=True)
    return users.Ask(manifest, dry_run=chance.random() < 0.1, changed=chance.random() < 0.25)
