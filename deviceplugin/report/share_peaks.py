"""The peak usage of each share, and how long it was observed: shows whether a share is larger than it needs to be.

Memory is sampled once a second, so shorter peaks can be missed. Compute is the mean over the last ten seconds or so, if
it was measured. Only time in which the share had a process counts. The peaks are written to disk every minute and at
the end, and are kept as long as the pod is on this node.
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
from prometheus_client.core import GaugeMetricFamily

from deviceplugin.arbiter.scheduling.leases import LeaseUsage
from deviceplugin.arbiter.share_ledgers import ShareUse
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.host import records

logger = logging.getLogger(__name__)

NAME: Final = "peaks.json"
SAMPLE_SECONDS: Final = 1.0
WRITE_SECONDS: Final = 60.0
# A longer time between two samples does not count as observed: the agent or the node was suspended.
MAX_SECONDS: Final = 5.0


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

    def after(self, memory_bytes: int, seconds: float) -> Peak:
        """Return the peak after `seconds` more, with this much memory in use."""
        most = max(self.memory_bytes, memory_bytes)
        return dataclasses.replace(self, memory_bytes=most, observed_seconds=self.observed_seconds + seconds)

    def with_compute(self, ratio: float | None) -> Peak:
        """Return the peak after a sample of recent compute."""
        if ratio is None or (self.compute_ratio is not None and ratio <= self.compute_ratio):
            return self
        return dataclasses.replace(self, compute_ratio=ratio)


_Key = tuple[str, str, str]  # the pod's UID, the containers, the GPU


class Peaks:
    """The peaks of this node's shares.

    directory: where they are stored. pods: returns the UIDs of the node's pods, None while unknown.
    """

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
        self._uses = uses
        self._leases = leases
        self._pods = pods
        self._clock = clock
        self._sampled_at = clock()
        self._written_at = clock()
        self._peaks: dict[_Key, Peak] = {_key(peak): peak for peak in _read(self._path)}

    @property
    def all(self) -> tuple[Peak, ...]:
        return tuple(self._peaks.values())

    async def run(self) -> None:
        """Sample and write until cancelled."""
        try:
            while True:
                self.sample()
                if self._clock() - self._written_at >= WRITE_SECONDS:
                    self.save()
                await asyncio.sleep(SAMPLE_SECONDS)
        finally:
            self.save()

    def sample(self) -> None:
        """Sample the usage of all shares."""
        now = self._clock()
        passed, self._sampled_at = now - self._sampled_at, now
        seconds = passed if passed <= MAX_SECONDS else 0.0
        for use in self._uses():
            held = zip(use.tenant.grants, use.used_bytes, use.overhead_bytes, strict=True)
            for grant, used_bytes, overhead_bytes in held:
                new = _zero(use.tenant, grant.uuid)
                known = self._peaks.get(_key(new))
                after = new.after(used_bytes + overhead_bytes, 0.0)
                self._peaks[_key(new)] = after if known is None else known.after(after.memory_bytes, seconds)
        for lease in self._leases():
            key = _key(_zero(lease.tenant, lease.gpu_uuid))
            if key in self._peaks:
                self._peaks[key] = self._peaks[key].with_compute(lease.recent)
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
    """Yield the peaks as metrics."""
    labels = ["node", "namespace", "pod", "containers", "gpu"]
    memory = GaugeMetricFamily(
        "gpushare_share_peak_memory_bytes",
        "The most memory that a share's processes used, charged or not, since the first of them started.",
        labels=labels,
    )
    compute = GaugeMetricFamily(
        "gpushare_share_peak_compute_ratio",
        "The largest fraction of roughly ten seconds in which a share used its GPU; absent if never measured.",
        labels=labels,
    )
    observed = GaugeMetricFamily(
        "gpushare_share_observed_seconds", "For how long the peaks of a share have been observed.", labels=labels
    )
    for peak in peaks:
        values = [node_name, peak.namespace, peak.pod, peak.containers, peak.gpu]
        memory.add_metric(values, peak.memory_bytes)
        observed.add_metric(values, peak.observed_seconds)
        if peak.compute_ratio is not None:
            compute.add_metric(values, peak.compute_ratio)
    yield from (memory, compute, observed)


def _zero(tenant: Tenant, gpu: str) -> Peak:
    return Peak(tenant.pod_uid, tenant.namespace, tenant.pod, ",".join(tenant.containers), gpu)


def _key(peak: Peak) -> _Key:
    return peak.pod_uid, peak.containers, peak.gpu


def _read(path: Path) -> list[Peak]:
    try:
        return list(records.read(tuple[Peak, ...], records.load(path), newer=True))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        extra = {"set_aside": str(records.set_aside(path)), "err": str(error)}
        logger.warning("Starting without the recorded peak usage of shares", extra=extra)
        return []
