"""One leader among replicas, by a Lease object: decides from the Lease's content and when we saw it. Pure.

The rule is one inequality. The leader stops by itself `renew_deadline_seconds` after it *began* its last successful
renewal. Another takes over no earlier than `duration_seconds` after it *saw* the Lease change, which is later than that
beginning. As the first time is shorter than the second, there is never more than one leader, whatever the clocks show:
each process uses only its own monotonic clock, and reads no time that another has written. (A clock that runs a third
too fast would break it, or a process that freezes in the middle of an action.)

`election` makes the calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
        return _as_leader(record, now=now, me=me, renewed_at=renewed_at, timing=timing)
    # Our own name, but we do not lead: our write arrived and its response did not. No other process relies on it.
    if record is None or record.holder in ("", me):
        return Acquire()
    silent_until = observed_at + record.duration_seconds
    return Acquire() if now >= silent_until else Wait(silent_until - now)


def _as_leader(record: LeaseRecord | None, *, now: float, me: str, renewed_at: float, timing: LeaseTiming) -> Decision:
    if not leads(renewed_at, now=now, timing=timing):
        return Lost(f"it could not be renewed for {timing.renew_deadline_seconds:g} s")
    if record is None:
        return Lost("the Lease was deleted")
    if record.holder != me:
        return Lost(f"{record.holder or 'another client'} changed it")
    return Renew()


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
