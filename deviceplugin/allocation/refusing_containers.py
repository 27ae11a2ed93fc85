"""What is refused to a container, before anything is given to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deviceplugin.allocation.greedy import AllocationError
from gpushare import errors
from gpushare.modes.offering import Offered


def check(resource: str, requested: Sequence[str], devices: Mapping[str, Offered]) -> None:
    """Raises AllocationError if a container cannot have the ids that it asks for together.

    devices: every id of the resource. Of shared devices that say so a container may have one: two shares are no larger
    share, and may be of the same GPU.
    """
    for identity in requested:
        if identity not in devices:
            raise AllocationError(
                f'invalid allocation request for "{resource}": invalid request: unknown device: '
                f"{errors.shortened(identity)}"
            )
    if len(requested) > 1 and any(devices[identity].stands_alone for identity in requested):
        raise AllocationError(
            f'invalid allocation request for "{resource}": invalid request: maximum request size for shared resources '
            f"is 1; found {len(requested)}: ask for 1, or set failRequestsGreaterThanOne to false for {resource}"
        )
