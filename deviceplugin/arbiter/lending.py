"""Lends memory that no share's request needs to shares with a higher memory limit, as their processes ask for it.

Two laws: no GPU is ever over-committed, and a request is always honoured, because memory cannot be taken back from a
process. So lent memory counts as held from before the limit is raised until after it is lowered, and only memory that
the ledger has not given to any share is lent.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Final

from deviceplugin.arbiter import tenant
from deviceplugin.arbiter.share_ledger import ShareLedger
from deviceplugin.arbiter.tenant import Tenant
from gpushare import ledger
from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode

CHUNK_BYTES: Final = 64 << 20  # lent at once, so that not every small allocation writes the GPUNode's status
CHUNKS: Final = 32  # or one of this many parts of all that may be lent, if that is more
KEPT_SECONDS: Final = 10.0  # memory that goes back after less would be asked for again


@dataclasses.dataclass(eq=False)
class _Asking:
    """A process that waits for its share to have more memory. gpu: which of the share's GPUs."""

    gpu: int
    held_bytes: int  # by the whole share
    refused_bytes: int
    done: asyncio.Future[None]

    @property
    def wanted_bytes(self) -> int:
        return self.held_bytes + self.refused_bytes


class Lender:
    """Decides the memory limit that each share should have. clock: monotonic, in seconds.

    The agent may still be publishing the last decision. A lower amount must arrive in the GPUNode's status before
    more is lent again; otherwise a process could get memory while the status gives it away.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asking: dict[str, list[_Asking]] = {}  # by share key
        self._decided: dict[str, int] = {}  # likewise, as all below
        self._unused: dict[str, float] = {}  # since when a share has had more than it needs

    def ask(self, share: Tenant, held_bytes: int, refused_bytes: int, *, gpu: int = 0) -> asyncio.Future[None] | None:
        """Note that a process needs this much more. The future is done once it may try again; None if that is now."""
        asking = _Asking(gpu, held_bytes, refused_bytes, asyncio.get_running_loop().create_future())
        if not share.memory_bytes < asking.wanted_bytes <= (share.memory_limit_bytes or 0):
            return None
        self._asking.setdefault(share.key, []).append(asking)
        return asking.done

    def answer(self, share: Tenant) -> None:
        """Wake the share's processes whose limit is high enough, and those that will get no more."""
        decided_bytes = self._decided.get(share.key, 0)
        for asking in self._asking.get(share.key, ()):
            if not share.memory_bytes < asking.wanted_bytes <= decided_bytes and not asking.done.done():
                asking.done.set_result(None)

    def forget(self, key: str, done: asyncio.Future[None]) -> None:
        left = [asking for asking in self._asking.get(key, ()) if asking.done is not done]
        if left:
            self._asking[key] = left
        else:
            self._asking.pop(key, None)

    def keep_only(self, keys: Collection[str]) -> None:
        for known in (self._decided, self._unused):
            for key in known.keys() - set(keys):
                del known[key]

    def decide(self, share: ShareLedger, node: GpuNode, entry: Allocation, free: dict[str, int]) -> int:
        """Return the limit that the share should have, and take what is newly lent out of `free`, by GPU UUID."""
        given, key = entry.shares[share.tenant.share], share.tenant.key
        own_bytes = given.memory_bytes if given.shrink_to_bytes is None else given.shrink_to_bytes
        limit_bytes = (given.memory_limit_bytes or 0) if given.shrink_to_bytes is None else 0
        chunk_bytes = max(CHUNK_BYTES, (limit_bytes - own_bytes) // CHUNKS)
        counted_bytes = tenant.counted_bytes(node, entry, share.tenant.share)
        has_bytes = min(share.tenant.memory_bytes, counted_bytes)
        before_bytes = self._decided.get(key, max(own_bytes, has_bytes))
        if max(limit_bytes, has_bytes) <= given.memory_bytes:
            decided_bytes = own_bytes
        elif counted_bytes > max(given.memory_bytes, before_bytes):
            decided_bytes = max(own_bytes, before_bytes)
        else:
            most_bytes = counted_bytes + max(0, min(free.get(uuid, 0) for uuid in given.gpu_uuids))
            decided_bytes = max(own_bytes, self._kept_bytes(share, own_bytes, has_bytes, chunk_bytes))
            most_bytes = min(limit_bytes, most_bytes)
            needed_bytes = self._needed_bytes(key, most_bytes)
            decided_bytes = max(decided_bytes, min(_rounded(needed_bytes, chunk_bytes), most_bytes))
            for uuid in given.gpu_uuids:
                free[uuid] = free.get(uuid, 0) - max(0, decided_bytes - counted_bytes)
        self._decided[key] = decided_bytes
        return decided_bytes

    def _needed_bytes(self, key: str, most_bytes: int) -> int:
        """Return the limit with which as many of the share's waiting processes as possible, in order, can go on."""
        needed_bytes, granted_bytes = 0, collections.Counter[int]()
        for asking in self._asking.get(key, ()):
            wanted_bytes = asking.wanted_bytes + granted_bytes[asking.gpu]
            if wanted_bytes <= most_bytes and not asking.done.done():
                granted_bytes[asking.gpu] += asking.refused_bytes
                needed_bytes = max(needed_bytes, wanted_bytes)
        return needed_bytes

    def _kept_bytes(self, share: ShareLedger, own_bytes: int, has_bytes: int, chunk_bytes: int) -> int:
        """Return how much of its limit the share keeps: what it has used within the last seconds."""
        needed_bytes = max(own_bytes, min(has_bytes, _rounded(share.held_bytes(), chunk_bytes)))
        if needed_bytes >= has_bytes:
            self._unused.pop(share.tenant.key, None)
            return has_bytes
        since = self._unused.setdefault(share.tenant.key, self._clock())
        return has_bytes if self._clock() - since < KEPT_SECONDS else needed_bytes


def free_bytes(node: GpuNode, departed: Iterable[ShareLedger], gpu_bytes: Callable[[str], int]) -> dict[str, int]:
    """Return the memory of each GPU that belongs to no share, by UUID. departed: shares that only have processes."""
    if not any(share.memory_limit_bytes for entry in node.allocations for share in entry.shares):
        return {}
    free = {uuid: gpu_bytes(uuid) - used.memory_bytes for uuid, used in ledger.use(node).items()}
    for share in departed:
        for grant in share.tenant.grants:
            free[grant.uuid] = free.get(grant.uuid, 0) - grant.memory_bytes
    return free


def _rounded(memory_bytes: int, chunk_bytes: int) -> int:
    return -(-memory_bytes // chunk_bytes) * chunk_bytes
