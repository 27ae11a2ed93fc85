"""Leader election by a Lease object: one leader among replicas.

The rule is one inequality. The leader stops by itself `renew_deadline_seconds` after it *began* its last successful
renewal. Another takes over no earlier than `duration_seconds` after it *saw* the Lease change, which is later than that
beginning. As the first time is shorter than the second, there is never more than one leader, whatever the clocks show:
each process uses only its own monotonic clock, and reads no time that another has written. (A clock that runs a third
too fast would break it, or a process that freezes in the middle of an action.)

`decide` is pure; `Election` reads and writes the Lease and reports the leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare.cluster import api_client, api_errors


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds; the customary values of Kubernetes."""

    duration_seconds: int = 15
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_seconds < self.renew_deadline_seconds < self.duration_seconds:
            raise ValueError(
                f"a lease needs retry ({self.retry_seconds} s) < renew deadline ({self.renew_deadline_seconds} s) "
                f"< duration ({self.duration_seconds} s)"
            )


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The content of a Lease. holder: "" after a release."""

    holder: str
    duration_seconds: float
    transitions: int
    version: str


@dataclass(frozen=True, slots=True)
class Acquire:
    """Write our name: the Lease is free, or its holder has been silent for too long."""


@dataclass(frozen=True, slots=True)
class Renew:
    """We lead; write again to keep the Lease."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Another leads; it may be replaced after `seconds` of silence from now on."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Lost:
    """We led, and no longer do: stop at once what only a leader may do."""

    why: str


Decision = Acquire | Renew | Wait | Lost


def decide(
    record: LeaseRecord | None,
    *,
    observed_at: float,
    now: float,
    me: str,
    renewed_at: float | None,
    timing: LeaseTiming,
) -> Decision:
    """Return the next action.

    record: the Lease as read last; None if absent. observed_at: when we first saw this version; now: both by our
    monotonic clock. me: our name, which no other process has or had. renewed_at: when we began our last successful
    write as the leader; None if we do not lead.
    """
    if renewed_at is not None:
        if not leads(renewed_at, now=now, timing=timing):
            return Lost(f"it could not be renewed for {timing.renew_deadline_seconds:g} s")
        if record is None:
            return Lost("the Lease was deleted")
        return Renew() if record.holder == me else Lost(f"{record.holder or 'another client'} changed it")
    # Our own name, but we do not lead: our write arrived and its response did not. No other process relies on it.
    if record is None or record.holder in ("", me):
        return Acquire()
    silent_until = observed_at + record.duration_seconds
    return Acquire() if now >= silent_until else Wait(silent_until - now)


def leads(renewed_at: float | None, *, now: float, timing: LeaseTiming) -> bool:
    """Whether a leader that began its last successful write at `renewed_at` may still act."""
    return renewed_at is not None and now - renewed_at < timing.renew_deadline_seconds


def read(lease: Mapping[str, Any], *, timing: LeaseTiming) -> LeaseRecord:
    """Read a Lease object. A missing or invalid duration is taken as ours, so as never to take over too early."""
    spec = lease.get("spec") or {}
    duration = spec.get("leaseDurationSeconds")
    return LeaseRecord(
        holder=spec.get("holderIdentity") or "",
        duration_seconds=float(duration) if isinstance(duration, int) and duration > 0 else timing.duration_seconds,
        transitions=int(spec.get("leaseTransitions") or 0),
        version=lease["metadata"]["resourceVersion"],
    )


def held(spec: Mapping[str, Any], *, me: str, time: str, timing: LeaseTiming) -> dict[str, Any]:
    """Return the Lease's spec with us as its holder; `time` (RFC 3339, microseconds) is only for people."""
    continued = spec.get("holderIdentity") == me
    return {
        **spec,
        "holderIdentity": me,
        "leaseDurationSeconds": timing.duration_seconds,
        "renewTime": time,
        "acquireTime": spec.get("acquireTime", time) if continued else time,
        "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (0 if continued else 1),
    }


def released(spec: Mapping[str, Any], *, time: str) -> dict[str, Any]:
    """Return the Lease's spec without a holder, so that the next leader need not wait."""
    return {**spec, "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": time}


logger = logging.getLogger(__name__)

RELEASE_SECONDS: Final = 5.0


class Election:
    """One candidate. It calls `started` and `stopped`, synchronously and in turn, when it begins and ceases to lead.

    namespace, name: the Lease's; the Lease is created if absent. me: a name that no other process has or will have: the
    pod's name and a random suffix.
    """

    def __init__(
        self,
        api: api_client.ApiClient,
        *,
        namespace: str,
        name: str,
        me: str,
        started: Callable[[], None],
        stopped: Callable[[], None],
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._name = {"namespace": namespace, "name": name}
        self._me = me
        self._started = started
        self._stopped = stopped
        self._timing = timing or LeaseTiming()
        self._clock = clock
        self._renewed_at: float | None = None
        self._own: dict[str, Any] | None = None  # the Lease as our last write left it, if that was confirmed
        self._seen: LeaseRecord | None = None
        self._observed_at = clock()
        self._went = False  # whether a Lease existed and is gone

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now. It ends by the clock, even before `stopped` could be called."""
        return leads(self._renewed_at, now=self._clock(), timing=self._timing)

    @property
    def leader(self) -> str:
        """The last known holder of the Lease; "" for none."""
        return self._seen.holder if self._seen else ""

    @property
    def is_first(self) -> bool:
        """Whether this process leads and no other is known to have led before it.

        A Lease that is deleted and recreated counts its transitions from one again. A process that saw the deletion is
        not misled by that; one that started later is.
        """
        return self.is_leader and not self._went and self._seen is not None and self._seen.transitions <= 1

    async def run(self) -> None:
        """Be a candidate until cancelled; then stop leading and release the Lease."""
        try:
            while True:
                pause_seconds = await self.step()
                await asyncio.sleep(pause_seconds)
        finally:
            await self._resign()

    async def step(self) -> float:
        """Read the Lease and act once; return the pause in seconds before the next step. Never raises ClusterError.

        It takes no longer than this process is certain to lead, so that `stopped` is called in time if the API server
        does not answer.
        """
        limit = self._timing.renew_deadline_seconds
        if self._renewed_at is not None:
            limit -= self._clock() - self._renewed_at
        try:
            async with asyncio.timeout(max(limit, 0.0)):
                return await self._reconcile()
        except (api_errors.Conflict, api_errors.AlreadyExists):
            self._log(logging.DEBUG, "Another candidate acquired the Lease first")
        except (api_errors.ClusterError, TimeoutError) as error:
            self._log(logging.WARNING, "Could not reach the Lease", err=str(error) or "no answer in time")
        if self._renewed_at is None:
            return self._timing.retry_seconds
        left = self._timing.renew_deadline_seconds - (self._clock() - self._renewed_at)
        if left <= 0:
            self._lose(f"it could not be renewed for {self._timing.renew_deadline_seconds:g} s")
        return max(0.0, min(self._timing.retry_seconds, left))

    async def _reconcile(self) -> float:
        # The leader knows what it wrote last, so it needs only one call, which may take long. Any other version is a
        # conflict, and the next step reads it.
        lease_object, self._own = self._own, None
        if lease_object is None:
            with contextlib.suppress(api_errors.NotFound):
                lease_object = await self._api.get(self._path)
        record = read(lease_object, timing=self._timing) if lease_object else None
        if record is None or self._seen is None or record.version != self._seen.version:
            self._observed_at = self._clock()
        if self._seen is not None and (record is None or record.transitions < self._seen.transitions):
            self._went = True
        self._seen = record
        began = self._clock()
        decision = decide(
            record,
            observed_at=self._observed_at,
            now=began,
            me=self._me,
            renewed_at=self._renewed_at,
            timing=self._timing,
        )
        match decision:
            case Lost(why=why):
                self._lose(why)
                return 0.0
            case Wait(seconds=seconds):
                return min(self._timing.retry_seconds, seconds)
            case _:
                await self._write(lease_object)
                is_new, self._renewed_at = self._renewed_at is None, began
                if is_new:
                    self._log(logging.INFO, "Became the leader")
                    self._started()
                return self._timing.retry_seconds

    async def _write(self, lease_object: dict[str, Any] | None) -> None:
        """Write our name over exactly the version that was read; raises Conflict if another process was faster."""
        spec = held((lease_object or {}).get("spec") or {}, me=self._me, time=_now(), timing=self._timing)
        if lease_object is not None:
            stored = await self._api.replace(self._path, {**lease_object, "spec": spec})
        else:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {**self._name, "labels": {"app.kubernetes.io/part-of": "gpushare"}},
                "spec": spec,
            }
            stored = await self._api.create(self._collection, body)
        self._own = stored
        self._seen = read(stored, timing=self._timing)
        self._observed_at = self._clock()

    def _lose(self, why: str) -> None:
        if self._renewed_at is None:
            return
        self._renewed_at = self._own = None
        self._log(logging.WARNING, "Stopped leading", reason=why)
        self._stopped()

    async def _resign(self) -> None:
        if self._renewed_at is None:
            return
        self._lose("shutting down")
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                # The API server may still carry out a renewal that we gave up on.
                while not await self._release():
                    pass
        except (api_errors.ClusterError, TimeoutError) as error:
            self._log(logging.WARNING, "Could not release the Lease", err=str(error) or "no answer in time")

    async def _release(self) -> bool:
        """Release the Lease if this process holds it; return False if it changed meanwhile."""
        lease_object = await self._api.get(self._path)
        if read(lease_object, timing=self._timing).holder != self._me:
            return True
        spec = released(lease_object["spec"], time=_now())
        try:
            await self._api.replace(self._path, {**lease_object, "spec": spec})
        except api_errors.Conflict:
            return False
        return True

    def _log(self, level: int, message: str, **extra: str) -> None:
        logger.log(level, message, extra={"lease": self._name, "me": self._me, **extra})


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
