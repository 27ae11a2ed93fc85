"""From the modes that GPUs have to those that they should have: what may be done now, and what has to wait. Pure.

A GPU is changed in three moves, and a crash between any two of them is harmless:

1. It is **closed**: nothing new comes on it. Whoever looked before that may still be on his way, so who uses it is
   asked only afterwards.
2. When nobody uses it, it is **vacated**: from then on it has no assignment, and nothing is offered of it.
3. Its new assignment is set up, and put in force.

Only a closed GPU that nobody uses is ever vacated; that is the whole of it, and a law of the tests.

A GPU that is not what it is used for, because somebody else has changed it, is closed as well, and **set right**: set
up again as what it is used for already, which takes nothing from those who use it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Generic, TypeVar

Assignment = TypeVar("Assignment")


@dataclasses.dataclass(frozen=True, slots=True)
class TransitionPlan(Generic[Assignment]):
    """What to do now, by UUID.

    closed: the GPUs that take nothing new from now on; all others do.
    right: those to be set right now.
    change: those to be vacated and set up now, and as what.
    waiting: those that cannot be changed yet, and who is in the way.
    """

    closed: frozenset[str]
    right: frozenset[str]
    change: Mapping[str, Assignment]
    waiting: Mapping[str, tuple[str, ...]]


def plan(
    present: Mapping[str, Assignment | None],
    wanted: Mapping[str, Assignment],
    *,
    closed: Set[str],
    users: Mapping[str, tuple[str, ...]],
    amiss: Set[str] = frozenset(),
) -> TransitionPlan[Assignment]:
    """The next moves.

    present: what is in force; None for a GPU that was vacated, or of which nothing is known.
    wanted: what should be; a GPU that is not in it is left as it is.
    closed: those that took nothing new already when `users` were asked for.
    users: who uses a GPU, in words; a GPU that is not in it is used by nobody.
    amiss: those that are not, as the driver has them, what is in force on them.
    """
    differing = {uuid for uuid, assignment in wanted.items() if present.get(uuid) != assignment}
    known = differing & closed
    return TransitionPlan(
        closed=frozenset(differing | amiss),
        right=frozenset((amiss - differing) & closed),
        change={uuid: wanted[uuid] for uuid in wanted if uuid in known and not users.get(uuid)},
        waiting={uuid: users[uuid] for uuid in wanted if uuid in known and users.get(uuid)},
    )
