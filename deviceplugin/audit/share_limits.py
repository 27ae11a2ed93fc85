"""Checks whether each share's limits are in force: compares the GPUNode with the limits pages, and finds processes that
bypass them. Pure.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from deviceplugin.arbiter import tenant
from deviceplugin.audit.excess import Overuse
from deviceplugin.audit.node_audit import AuditedProcess, AuditedShare, LimitState, Seen
from deviceplugin.audit.node_audit import SeenShare as SeenShare
from gpushare import quantity
from gpushare.gpunode import GpuNode

GONE: Final = "the GPUNode no longer has this share, but its processes still run"
_MAX_NAMED: Final = 5

Place = tuple[str, int, str]  # allocation id, position of the share in it, GPU UUID


def check(
    seen: Seen, node: GpuNode, processes: Iterable[AuditedProcess], suspects: frozenset[Hashable]
) -> tuple[tuple[AuditedShare, ...], frozenset[Hashable]]:
    """Return every share of the GPUNode on each of its GPUs, and running shares that it lacks; and the next suspects.

    processes: already checked. Those that bypassed their share's limits are confirmed, so they count immediately.
    """
    around = collections.defaultdict[Place, list[AuditedProcess]](list)
    for process in processes:
        if process.state is LimitState.UNLIMITED and process.place is not None:
            around[*process.place, process.process.gpu].append(process)
    shares, waiting = [], set()
    for place, share in _compared(seen.shares, node, seen.overuse):
        if share.reason:
            waiting.add(("share", *place))
        differs = share.reason if ("share", *place) in suspects else ""
        reason = _got_around(around[place]) or differs or (share.overuse.sentence if share.overuse is not None else "")
        shares.append(dataclasses.replace(share, in_force=not reason, reason=reason or _memory_reason(share)))
    return tuple(shares), frozenset(waiting)


def _compared(
    seen: Iterable[SeenShare], node: GpuNode, beyond: Mapping[tuple[str, str], Overuse]
) -> Iterator[tuple[Place, AuditedShare]]:
    """Yield each share with its place. Its reason says how it differs from the GPUNode; empty if it does not."""
    by_place: dict[tuple[str, int], SeenShare] = {}
    for seen_share in seen:
        entry = tenant.find_allocation(seen_share.tenant, node)
        if entry is not None:
            by_place[entry.id, seen_share.tenant.share] = seen_share
            continue
        for gpu, grant in enumerate(seen_share.tenant.grants):
            share = AuditedShare(
                seen_share.tenant.namespace,
                seen_share.tenant.pod,
                seen_share.tenant.containers,
                grant.uuid,
                0,
                0,
                0,
                reason=GONE,
            )
            yield (
                (seen_share.tenant.key, seen_share.tenant.share, grant.uuid),
                _measured(share, seen_share, gpu, beyond),
            )
    for entry in node.allocations:
        for position, ledger_share in enumerate(() if entry.is_backfill_reservation else entry.shares):
            amounts = (ledger_share.request_percent, ledger_share.limit_percent, ledger_share.memory_bytes)
            for gpu, uuid in enumerate(ledger_share.gpu_uuids):
                share = AuditedShare(entry.pod.namespace, entry.pod.name, ledger_share.containers, uuid, *amounts)
                running = by_place.get((entry.id, position))
                if running is not None:
                    share = _measured(share, running, gpu, beyond)
                    without = sum(member.with_library is False for member in running.members)
                    may_bytes = {ledger_share.memory_bytes, tenant.memory_bytes(node, entry, position)}
                    reason = _difference(share, may_bytes) or _without_library(without, share.processes)
                    share = dataclasses.replace(share, reason=reason)
                yield (entry.id, position, uuid), share


def _measured(
    share: AuditedShare, seen: SeenShare, gpu: int, beyond: Mapping[tuple[str, str], Overuse]
) -> AuditedShare:
    return dataclasses.replace(
        share,
        enforced=seen.enforced[gpu],
        charged_bytes=sum(member.charged_bytes[gpu] for member in seen.members),
        processes=len(seen.members),
        with_library=sum(member.with_library is True for member in seen.members),
        overuse=beyond.get((share.gpu, seen.tenant.key)),
    )


def _difference(share: AuditedShare, may_bytes: Collection[int]) -> str:
    enforced = share.enforced
    assert enforced is not None  # noqa: S101 - only of shares that have processes
    compute = (enforced.request_percent, enforced.limit_percent) == (share.request_percent, share.limit_percent)
    if compute and enforced.memory_bytes in may_bytes:  # also the smaller size while the share is shrinking
        return ""
    amounts = _amounts(enforced.request_percent, enforced.limit_percent, enforced.memory_bytes)
    granted = _amounts(share.request_percent, share.limit_percent, share.limit_bytes)
    return f"its processes run with {amounts}, but the GPUNode grants {granted}"


def _without_library(count: int, processes: int) -> str:
    return f"the library is not loaded in {count} of its {processes} processes" if count else ""


def _got_around(processes: Sequence[AuditedProcess]) -> str:
    if not processes:
        return ""
    names = ", ".join(f"{process.process.name} ({process.process.pid})" for process in processes[:_MAX_NAMED])
    more = f" and {len(processes) - _MAX_NAMED} more" if len(processes) > _MAX_NAMED else ""
    return f"{names}{more} bypassed its limits"


def _memory_reason(share: AuditedShare) -> str:
    if not share.beyond_bytes:
        return ""
    beyond = quantity.format_bytes(share.beyond_bytes)
    return f"including contexts, it uses {beyond} more than its limit: it gets no more memory until it frees that much"


def _amounts(request_percent: int, limit_percent: int, memory_bytes: int) -> str:
    memory = quantity.format_bytes(memory_bytes)
    return f"a request of {request_percent}%, a limit of {limit_percent}% and {memory} of memory"
