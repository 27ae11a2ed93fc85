"""MIG devices for shares: the profile that holds a share, and the place of its instance on a GPU. Pure.

A share gets the smallest profile that holds it, which follows from its request and the GPU's model alone. Of the free
places, the instance gets the one after which the most places are left for the largest profile, then for the next
smaller one, and so on. The ledger checks that no two instances overlap, so the agent can create each where it is
planned, in any order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Final

from gpushare import errors, quantity
from gpushare.allocation import Allocation, GivenShare, Isolation, MigInstance, Share
from gpushare.gpunode import Gpu
from gpushare.mig import profile
from gpushare.mig.instance_layout import Geometry, ProfileGeometry

Kinds = tuple[ProfileGeometry, ...]
_MAX_NAMED: Final = 3


def profiles(geometry: Geometry | None, memory_bytes: int) -> Kinds:
    """Return the profiles that shares on this GPU may have, smallest first; empty if they are unknown.

    Profiles with or without media engines or graphics are left out, as a share cannot ask for these. memory_bytes: of
    the GPU. An instance counts with no more than its slices' part of it, so that all instances add up to the GPU.
    """
    if geometry is None or not memory_bytes:
        return ()
    usable = (
        ProfileGeometry(kind.profile, 0, kind.memory_slices, kind.starts, kind.most, min(known, part))
        for kind in geometry.kinds
        for part in [memory_bytes * kind.memory_slices // geometry.memory_slices]
        for known in [kind.memory_bytes or part]
        if kind.profile.plain
    )
    return tuple(sorted(usable, key=lambda kind: (kind.memory_slices, kind.gpu_slices)))


def profile_for(gpu: Gpu, share: Share) -> ProfileGeometry | None:
    """Return the smallest profile of the GPU that holds the share, or None."""
    return next((kind for kind in gpu.mig_geometry if _holds(gpu, kind, share)), None)


def misfit(gpu: Gpu, share: Share) -> str:
    """Return why no MIG profile of the GPU holds the share, as a clause; empty if one does."""
    if not gpu.mig_geometry:
        return "has no MIG profiles"
    if profile_for(gpu, share) is not None:
        return ""
    largest = gpu.mig_geometry[-1]
    compute = quantity.format_compute(_compute_percent(gpu, largest))
    there = f"{compute} GPU with {quantity.format_bytes(largest.memory_bytes)}"
    return f"has no MIG profile that holds {share}: the largest, {largest.profile}, has {there}"


def instances(holders: Iterable[Allocation], uuid: str = "") -> tuple[MigInstance, ...]:
    """Return the instances of these pods, on any GPU or the one with this UUID, by place."""
    shares = (share for holder in holders for share in holder.shares if not uuid or uuid in share.gpu_uuids)
    return tuple(sorted((share.mig for share in shares if share.mig is not None), key=lambda made: made.start))


def room(gpu: Gpu, taken: Iterable[MigInstance]) -> list[str]:
    """Return the profiles that have a place next to these instances, largest first."""
    made = tuple(taken)
    kinds = reversed(gpu.mig_geometry)
    return [str(kind.profile) for kind in kinds if _free_starts(gpu.mig_geometry, kind, made)]


def described(isolation: Isolation, shares: Iterable[GivenShare]) -> str:
    """Return the isolation of these shares for people, with the profile of their MIG device: `mig (1g.10gb)`."""
    profiles = {share.mig.profile: None for share in shares if share.mig is not None}
    return f"{isolation} ({', '.join(profiles)})" if profiles else isolation.value


def place(gpu: Gpu, kind: ProfileGeometry, taken: Iterable[MigInstance]) -> MigInstance | None:
    """Return an instance of that profile next to these, or None if there is no place for it."""
    start = _best_start(gpu.mig_geometry, kind, tuple(taken))
    return None if start is None else _instance(gpu, kind, start)


def lacks_place(gpu: Gpu, share: Share, taken: tuple[MigInstance, ...]) -> str:
    """Return why the share's profile has no place next to these instances, as a clause; empty if it has one."""
    kind = profile_for(gpu, share)
    if kind is None or _free_starts(gpu.mig_geometry, kind, taken):
        return ""
    names = ", ".join(map(str, taken[:_MAX_NAMED])) + (f" and {len(taken) - _MAX_NAMED} more" * (len(taken) > 3))
    return f"has no place for a {kind.profile} next to {names}"


def cut(gpu: Gpu, share: Share, given: GivenShare, holders: Iterable[Allocation]) -> GivenShare:
    """Return the given share with its MIG device. Raises LookupError if the share does not pass the filters."""
    kind = profile_for(gpu, share)
    made = place(gpu, kind, instances(holders, gpu.uuid)) if kind is not None else None
    if made is None:
        raise LookupError(f"{gpu.uuid} has no MIG device for {', '.join(given.containers)}")
    return on_device(given, made)


def on_device(given: GivenShare, made: MigInstance) -> GivenShare:
    """Return the share on this device; it never has more memory than the device."""
    return dataclasses.replace(given, memory_bytes=min(given.memory_bytes, made.memory_bytes), mig=made)


def read_device(gpu: Gpu, text: str) -> MigInstance:
    """Read a device as `str` writes it, such as `1g.10gb@4`. Raises LedgerError if the GPU has no such profile."""
    name, _, start = text.partition("@")
    kind = next((kind for kind in gpu.mig_geometry if str(kind.profile) == name), None)
    if kind is None or not start.isdecimal() or int(start) not in kind.starts:
        raise errors.LedgerError(f"GPU {gpu.uuid} has no place for the MIG device {errors.quoted(text)}")
    return _instance(gpu, kind, int(start))


def conflict(gpu: Gpu, holders: Iterable[Allocation]) -> str:
    """Return why these pods' MIG devices cannot all be on the GPU, as a clause; empty if they can.

    A GPU that no longer reports its profiles keeps the devices that it has.
    """
    kinds = {str(kind.profile): kind for kind in gpu.mig_geometry}
    taken: dict[int, Allocation] = {}
    before: tuple[MigInstance, ...] = ()
    for holder in holders:
        if holder.labels.isolation is not Isolation.MIG or holder.is_backfill_reservation:
            continue
        for share in holder.shares:
            if gpu.uuid not in share.gpu_uuids:
                continue
            if (made := share.mig) is None or len(share.gpu_uuids) > 1:
                return f"has a share of {holder.pod} with isolation mig, which has no MIG device"
            other = next((taken[slice_] for slice_ in made.places if slice_ in taken), None)
            if other is not None:
                return f"has overlapping MIG devices: {made} of {holder.pod}, and that of {other.pod}"
            kind = kinds.get(made.profile)
            if kinds and (kind is None or made.start not in _free_starts(gpu.mig_geometry, kind, before)):
                return f"has no place for {made}, the MIG device of {holder.pod}"
            taken |= dict.fromkeys(made.places, holder)
            before = (*before, made)
    return ""


def _holds(gpu: Gpu, kind: ProfileGeometry, share: Share) -> bool:
    # A percentage of the memory means slices: an instance has a little less memory than its slices' part of the GPU.
    if share.memory.bytes is None:
        has_memory = 100 * kind.memory_slices >= (share.memory.percent or 0) * gpu.mig_geometry[-1].memory_slices
    else:
        has_memory = kind.memory_bytes >= share.memory.bytes
    return has_memory and _compute_percent(gpu, kind) >= share.request_percent


def _compute_percent(gpu: Gpu, kind: ProfileGeometry) -> int:
    return 100 * kind.gpu_slices // gpu.mig_geometry[-1].gpu_slices


def _instance(gpu: Gpu, kind: ProfileGeometry, start: int) -> MigInstance:
    amounts = _compute_percent(gpu, kind), kind.memory_bytes
    return MigInstance(str(kind.profile), start, kind.memory_slices, *amounts)


def _best_start(kinds: Kinds, kind: ProfileGeometry, taken: tuple[MigInstance, ...]) -> int | None:
    def left(start: int) -> tuple[tuple[int, ...], int]:
        after = (*taken, MigInstance(str(kind.profile), start, kind.memory_slices, 0, 0))
        return tuple(len(_free_starts(kinds, other, after)) for other in reversed(kinds)), start

    return max(_free_starts(kinds, kind, taken), key=left, default=None)


@functools.lru_cache(maxsize=4096)
def _free_starts(kinds: Kinds, kind: ProfileGeometry, taken: tuple[MigInstance, ...]) -> tuple[int, ...]:
    """Return where one more instance of that profile can start."""
    slices = sum(profile.parse(made.profile).gpu_slices for made in taken)
    alike = sum(made.profile == str(kind.profile) for made in taken)
    if slices + kind.gpu_slices > kinds[-1].gpu_slices or alike >= kind.most:
        return ()
    occupied = {place_ for made in taken for place_ in made.places}
    return tuple(start for start in kind.starts if occupied.isdisjoint(range(start, start + kind.memory_slices)))
