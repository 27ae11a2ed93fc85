"""A constraint is one row of `CONSTRAINTS`: the parser, `why`, the mix and the profile follow the table."""

from __future__ import annotations

import dataclasses

import pytest

from gpushare import contract, mix, placement, request
from gpushare.mix import Mix
from gpushare.placement import NodeView
from gpushare.placement_profile import PlacementProfile
from gpushare.refusal import Refusal
from gpushare.request import CONSTRAINTS, NO_CONSTRAINTS, Constraints
from gpushare.whatif.requesting_pod import RequestingPod
from gpushare.whatif.world import World
from kubectl_gpushare.planning import remedies
from tests import builders

# Values with which a pod does not fit on `NODE`, whose GPU has a pod with only an anti-affinity label.
REFUSED = {
    contract.MODEL: "H100",
    contract.MIN_MEMORY: "1Ti",
    contract.MIN_COMPUTE_CAPABILITY: "9.0",
    contract.UUID: "GPU-other",
    contract.NOT_UUID: "GPU-node-a-0",
    contract.AFFINITY: "red",
    contract.ANTI_AFFINITY: "green",
    contract.EXCLUSION: "blue",
    contract.ISOLATION: "mps",
}
# Annotations that set amounts or placement, not which GPUs fit.
NO_CONSTRAINT = {
    *contract.SHARE_KEYS,
    contract.CONTAINER,
    contract.POLICY,
    contract.GROUP,
    contract.GROUP_SIZE,
    contract.LATENCY,
    contract.NO_EVICT,
}
HOLDER = builders.allocation("a0", "GPU-node-a-0", request=10, memory_gib=1, anti_affinity="green")
NODE = dataclasses.replace(builders.node("node-a", gpus=1), allocations=(HOLDER,))


def test_table_has_every_constraint() -> None:
    assert [row.field for row in CONSTRAINTS.values()] == [field.name for field in dataclasses.fields(Constraints)]
    assert {*CONSTRAINTS} == {*contract.REQUEST_KEYS} - NO_CONSTRAINT
    assert {*REFUSED} == {*CONSTRAINTS}


@pytest.mark.parametrize("key", CONSTRAINTS)
def test_constraint_is_parsed_and_why_proposes_to_drop_it(key: str) -> None:
    asked = RequestingPod.from_manifest(
        builders.pod(**{"request": "0.1", key.removeprefix(contract.PREFIX): REFUSED[key]})
    )
    field = CONSTRAINTS[key].field
    assert getattr(asked.request.constraints, field) != getattr(NO_CONSTRAINTS, field)
    assert isinstance(placement.place([NodeView.from_node(NODE)], asked.request), Refusal)
    world = World([NODE])
    refused = world.refuse(asked.manifest, asked.request)
    assert isinstance(refused, Refusal)
    dropped = [change.sentence for change in remedies.all_of(world, asked, refused.rejected)]
    assert f'without {key} "{REFUSED[key]}"' in dropped


@pytest.mark.parametrize("key", [key for key, row in CONSTRAINTS.items() if row.of_model])
def test_constraint_on_the_model_is_learned_and_published(key: str) -> None:
    plain, narrow = (
        request.parse(builders.pod(request="0.1", **more))
        for more in ({}, {key.removeprefix(contract.PREFIX): REFUSED[key]})
    )
    learned = builders.mix([plain, *[narrow] * 2])
    assert sorted(learned.weights.values()) == [1.0, 2.0]
    (asked,) = mix.classes_of(narrow)
    assert asked.constraints == narrow.constraints
    profile = PlacementProfile(mix=Mix({asked: 2.0}, pods=2, gpus=8, largest=8))
    assert PlacementProfile.read(profile.data()) == profile
