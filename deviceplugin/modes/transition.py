"""Plans how GPUs get from their present modes to the wanted ones: which changes can be made now, and which wait. Pure.

A GPU changes its mode in three moves, and a crash between any two of them is harmless:

1. It is **closed**: it accepts no new pods. A pod that was placed just before may still be on its way, so the agent
   looks for users only after the GPU was closed.
2. When it has no users, it is **vacated**: from then on it has no assignment, and none of it is offered.
3. Its new assignment is set up, and put in force.

Only a closed GPU without users is ever vacated. That is the one law of this module, and the tests check it.

A GPU that has **drifted**, because another program changed it, is closed too, and **repaired**: it is set up again for
the mode that it already has, which does not disturb its users.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Generic, TypeVar

Assignment = TypeVar("Assignment")


@dataclasses.dataclass(frozen=True, slots=True)
class TransitionPlan(Generic[Assignment]):
    """The next moves, by UUID.

    closed: the GPUs that accept no new pods from now on; all others do.
    repair: the GPUs to repair now.
    change: the GPUs to vacate and set up now, with their new assignment.
    waiting: the GPUs that cannot be changed yet, with their users.
    """

    closed: frozenset[str]
    repair: frozenset[str]
    change: Mapping[str, Assignment]
    waiting: Mapping[str, tuple[str, ...]]


def plan(
    present: Mapping[str, Assignment | None],
    wanted: Mapping[str, Assignment],
    *,
    closed: Set[str],
    users: Mapping[str, tuple[str, ...]],
    drifted: Set[str] = frozenset(),
) -> TransitionPlan[Assignment]:
    """Plan the next moves.

    present: the assignments in force; None for a GPU that was vacated or is unknown.
    wanted: the configured assignments; a GPU without one stays as it is.
    closed: the GPUs that were closed before `users` was determined.
    users: the users of each GPU, in words; a GPU without an entry has none.
    drifted: the GPUs whose state differs from the assignment in force.
    """
    differing = {uuid for uuid, assignment in wanted.items() if present.get(uuid) != assignment}
    known = differing & closed
    return TransitionPlan(
        closed=frozenset(differing | drifted),
        repair=frozenset((drifted - differing) & closed),
        change={uuid: wanted[uuid] for uuid in wanted if uuid in known and not users.get(uuid)},
        waiting={uuid: users[uuid] for uuid in wanted if uuid in known and users.get(uuid)},
    )
