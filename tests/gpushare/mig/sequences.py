"""An oracle for placements: it applies NVIDIA's rule directly and shares no code with our search."""

from __future__ import annotations

from collections.abc import Sequence

from gpushare.mig.instance_layout import Geometry
from gpushare.mig.profile import Profile


def error(geometry: Geometry, sequence: Sequence[tuple[Profile, int]]) -> str | None:
    """Return why the instances cannot be created at these places in this order; None if they can."""
    occupied: set[int] = set()
    made: dict[Profile, int] = {}
    slices = 0
    for profile, start in sequence:
        kind = geometry.kind(profile)
        if kind is None or profile.compute_slices != profile.gpu_slices:
            return f"{geometry.name} has no GPU instance profile {profile}"
        if start not in kind.starts:
            return f"{profile} cannot begin at {start}"
        places = set(range(start, start + kind.memory_slices))
        made[profile] = made.get(profile, 0) + 1
        slices += kind.gpu_slices
        if places & occupied or made[profile] > kind.most or slices > geometry.gpu_slices:
            return f"{profile} at {start} does not fit beside {made}"
        occupied |= places
    return None
