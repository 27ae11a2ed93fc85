"""The orders in which instances can be created, for a driver that chooses the places itself.

Such a driver may put a 1g where a 3g would have fit, so the order decides. Largest first nearly always works; if it
does not, every other order is tried once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpushare.mig.instance_layout import Wanted
from gpushare.mig.profile import Profile


def largest_first(wanted: Wanted) -> tuple[Profile, ...]:
    """Return the instances of `wanted`, one by one."""
    ranked = sorted(
        wanted,
        key=lambda profile: (profile.gpu_slices, profile.compute_slices, profile.memory_gb, profile.with_),
        reverse=True,
    )
    return tuple(profile for profile in ranked for _ in range(wanted[profile]))


def distinct(wanted: Wanted) -> Iterator[tuple[Profile, ...]]:
    """Yield every distinct order of these, the largest first."""

    def order(left: tuple[Profile, ...]) -> Iterator[tuple[Profile, ...]]:
        if not left:
            yield ()
        for profile in dict.fromkeys(left):
            rest = list(left)
            rest.remove(profile)
            for tail in order(tuple(rest)):
                yield (profile, *tail)

    return order(largest_first(wanted))


def first_that_works(wanted: Wanted, attempt: Callable[[tuple[Profile, ...]], bool]) -> tuple[Profile, ...] | None:
    """Try the orders until `attempt` returns true; return None if it never does."""
    return next((order for order in distinct(wanted) if attempt(order)), None)
