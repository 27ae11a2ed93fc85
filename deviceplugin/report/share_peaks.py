"""The peak usage of each share, and how long it was observed: shows whether a share is larger than it needs to be.

Memory is sampled once a second, so shorter peaks can be missed. Compute is the mean over the last ten seconds or so, if
it was measured. Only time in which the share had a process counts. Peaks are kept as long as the pod is on this node.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from prometheus_client import Metric

from deviceplugin.arbiter.scheduling.leases import LeaseUsage
from deviceplugin.arbiter.share_ledgers import ShareUse
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.host import records
from deviceplugin.report.share_metrics import gauges

logger = logging.getLogger(__name__)

NAME: Final = "peaks.json"
SAMPLE_SECONDS: Final = 1.0
WRITE_SECONDS: Final = 60.0
MAX_SECONDS: Final = 5.0  # a longer time between two samples does not count: the agent or the node was suspended
_FAMILIES: Final = {
    "gpushare_share_peak_memory_bytes": (
        "The most memory that a share's processes used, charged or not, since the first of them started."
    ),
    "gpushare_share_peak_compute_ratio": (
        "The largest fraction of roughly ten seconds in which a share used its GPU; absent if never measured."
    ),
    "gpushare_share_observed_seconds": "For how long the peaks of a share have been observed.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Peak:
    """The peak of one share on one GPU. compute_ratio: from 0 to 1, None if it was never known."""

    pod_uid: str
    namespace: str
    pod: str
    containers: str
    gpu: str
    memory_bytes: int = 0
    compute_ratio: float | None = None
    observed_seconds: float = 0.0


class Peaks:
    """The peaks of the node's shares, in `directory`. pods: returns the UIDs of the node's pods, None while unknown."""

    def __init__(
        self,
        directory: Path,
        *,
        uses: Callable[[], Iterable[ShareUse]],
        leases: Callable[[], Iterable[LeaseUsage]],
        pods: Callable[[], frozenset[str] | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = directory / NAME
        self._clock = clock
        self._uses = uses
        self._leases = leases
        self._pods = pods
        self._sampled_at = self._written_at = clock()
        self._peaks = {(peak.pod_uid, peak.containers, peak.gpu): peak for peak in _read(self._path)}

    @property
    def all(self) -> tuple[Peak, ...]:
        return tuple(self._peaks.values())

    async def run(self) -> None:
        try:
            while True:
                self.sample()
                if self._clock() - self._written_at >= WRITE_SECONDS:
                    self.save()
                await asyncio.sleep(SAMPLE_SECONDS)
        finally:
            self.save()

    def sample(self) -> None:
        now = self._clock()
        passed = now - self._sampled_at
        seconds = passed if passed <= MAX_SECONDS else 0.0
        self._sampled_at = now
        for use in self._uses():
            tenant = use.tenant
            total_bytes = map(sum, zip(use.used_bytes, use.overhead_bytes, strict=True))
            for grant, memory_bytes in zip(tenant.grants, total_bytes, strict=True):
                key, containers = _key(tenant, grant.uuid), ",".join(tenant.containers)
                known = self._peaks.get(key)
                was = known or Peak(tenant.pod_uid, tenant.namespace, tenant.pod, containers, grant.uuid)
                self._peaks[key] = dataclasses.replace(
                    was,
                    memory_bytes=max(was.memory_bytes, memory_bytes),
                    observed_seconds=was.observed_seconds + (seconds if known is not None else 0.0),
                )
        for lease in self._leases():
            key, ratio = _key(lease.tenant, lease.gpu_uuid), lease.recent
            if (peak := self._peaks.get(key)) is not None and ratio is not None:
                self._peaks[key] = dataclasses.replace(peak, compute_ratio=max(ratio, peak.compute_ratio or 0.0))
        uids = self._pods()
        if uids is not None:
            self._peaks = {key: peak for key, peak in self._peaks.items() if peak.pod_uid in uids}

    def save(self) -> None:
        """Write the peaks to disk. A failure is only logged, as nothing depends on these figures."""
        self._written_at = self._clock()
        try:
            records.write_file(self._path, json.dumps([dataclasses.asdict(peak) for peak in self._peaks.values()]))
        except OSError as error:
            logger.warning("Could not write the peak usage of shares", extra={"err": str(error)})


def metrics(peaks: Iterable[Peak], *, node_name: str) -> Iterator[Metric]:
    families = gauges(_FAMILIES)
    for peak in peaks:
        values = [node_name, peak.namespace, peak.pod, peak.containers, peak.gpu]
        families["gpushare_share_peak_memory_bytes"].add_metric(values, peak.memory_bytes)
        families["gpushare_share_observed_seconds"].add_metric(values, peak.observed_seconds)
        if peak.compute_ratio is not None:
            families["gpushare_share_peak_compute_ratio"].add_metric(values, peak.compute_ratio)
    yield from families.values()


def _key(tenant: Tenant, gpu: str) -> tuple[str, str, str]:
    return tenant.pod_uid, ",".join(tenant.containers), gpu


def _read(path: Path) -> list[Peak]:
    try:
        return list(records.read(tuple[Peak, ...], records.load(path), newer=True))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        extra = {"set_aside": str(records.set_aside(path)), "err": str(error)}
        logger.warning("Starting without the recorded peak usage of shares", extra=extra)
        return []
