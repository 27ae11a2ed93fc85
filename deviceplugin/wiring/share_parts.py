"""The agent's end of the arbiter, the audit, and the peaks of shares."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from typing import Final

from deviceplugin.audit import auditor, overhead, unclaimed_memory
from deviceplugin.link import arbiter, node_shares
from deviceplugin.report import announcements, share_peaks
from deviceplugin.wiring.node_parts import ClusterParts, HardwareParts, Loops
from gpushare.gpunode import Condition

# How long the agent's view of the cluster can be stale before it counts: an API server restarts faster than that.
STALE_SECONDS: Final = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShareParts:
    """The agent's end of the arbiter, and the audit. audited: set once the first complete audit can be reported."""

    cluster: ClusterParts
    running: node_shares.Shares
    lookup: node_shares.Lookup
    arbiter: arbiter.Arbiter
    auditor: auditor.Auditor
    peaks: share_peaks.Peaks
    audited: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    @property
    def loops(self) -> Loops:
        return {"audit": self._audit, "peaks": self.peaks.run}

    def conditions(self) -> tuple[Condition, ...]:
        """Return the audit's conditions; none before the first complete audit."""
        return self.auditor.conditions if self.audited.is_set() else ()

    async def _audit(self) -> None:
        # The audit compares processes with the GPUs' modes, so these must be known first.
        await self.cluster.state.published.wait()
        # Until the pods are known, the node's endpoint reports the audit as incomplete, and the GPUNode keeps its last
        # condition. Otherwise a slow API server would make the condition of every node unknown and lose findings. If
        # the pods stay unknown, the condition says so, as nothing supports the previous agent's findings any more.
        last = time.monotonic() + STALE_SECONDS
        while not self.cluster.is_known and time.monotonic() < last:
            await self.auditor.step()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(auditor.SECONDS):
                    await self.cluster.synced()
        await self.auditor.step()
        self.audited.set()
        self.cluster.wake.status.set()
        await self.auditor.run()


def build(cluster: ClusterParts, hardware: HardwareParts, process: arbiter.ArbiterProcess) -> ShareParts:
    """Build the connection to the arbiter's process, and the audit."""
    settings, state, pods = cluster.settings, cluster.state, cluster.pods
    running = node_shares.Shares()
    sizes = overhead.ContextSizes(
        overhead.ContextCheckpoint(settings.root, until_learned_bytes=settings.context_memory_bytes),
        state.gpus,
        driver_version=hardware.driver_version,
    )
    owners = node_shares.Lookup(
        pods=pods.all, node=cluster.gpunode.now, ask_pods=pods.fetch, ask_node=cluster.gpunode.refreshed
    )
    connected = arbiter.Arbiter(
        process.channel,
        lookup=owners,
        node=cluster.gpunode.now,
        tell=cluster.wake.status.set,
        context_bytes=sizes.bytes_on,
        unclaimed_bytes=functools.partial(unclaimed_memory.unclaimed_on_gpu, hardware.driver, running),
        refused=announcements.RefusedLibraries(pods.all, cluster.events.warn).refused,
        shares=running,
    )
    return ShareParts(
        cluster=cluster,
        running=running,
        lookup=owners,
        arbiter=connected,
        auditor=auditor.Auditor(
            hardware.driver,
            connected,
            sizes,
            gpus=state.gpus,
            node=cluster.known_node,
            pods=pods.all,
            warn=cluster.events.warn,
            changed=cluster.wake.status.set,
            node_name=settings.node_name,
            identify=cluster.identify,
            end_unlimited=settings.end_unlimited,
            proc=settings.proc_root,
        ),
        peaks=share_peaks.Peaks(
            settings.state_directory, uses=running.uses, leases=running.lease_usage, pods=pods.uids
        ),
    )
