"""Isolation: which kinds a pod's shares may get, in the order in which placement tries them. One table decides `auto`.

The webhook, `fit`, `simulate`, `defrag` and `why` must give one pod the same answer for the same reason, so all of it
follows from the request and the cluster's default. A kind that the pod names is never replaced, and nothing moves
while it runs. `auto` gives no kind without a memory limit, so never `none`; and never `mig`, whose parts are larger
than what was asked for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from gpushare import contract
from gpushare.allocation import ONLY_ARBITER, Isolation
from gpushare.gpunode import Gpu
from gpushare.refusal import Refusal
from gpushare.request import AUTO, DEFAULT_ISOLATIONS, Request

DEFAULT: Final = DEFAULT_ISOLATIONS[0]


class TriedKind(NamedTuple):
    """A kind to try, and why, as a clause."""

    isolation: Isolation
    why: str


class LeaseRule(NamedTuple):
    """A rule of the table: such requests get leases, for this reason. always: MPS cannot serve them at all."""

    applies: Callable[[Request], bool]
    why: str
    always: bool = False


# Requests that `auto` gives leases without trying MPS; the first rule that applies gives the reason. MPS gains most
# where small kernels of several pods would otherwise take turns, such as those of two models that decode. It has no
# turns, its percentages are ceilings for each process, and a fault can end all pods of the GPU.
LEASES: Final[tuple[LeaseRule, ...]] = (
    LeaseRule(lambda asked: asked.latency, "leases give precedence to latency, and MPS has no turns", always=True),
    LeaseRule(
        lambda asked: any(demand.gpus > 1 for demand in asked.demands),
        "its share has several GPUs, and a process has one MPS daemon",
        always=True,
    ),
    LeaseRule(
        lambda asked: asked.group_size.is_gang, "leases run the pods of a group at the same time, as collectives need"
    ),
    LeaseRule(
        lambda asked: any(demand.share.request_percent == 100 for demand in asked.demands),
        "it requests a whole GPU's compute, so no other kernels would run next to its own",
    ),
    LeaseRule(
        lambda asked: any(demand.share.request_percent == 0 for demand in asked.demands),
        "with leases it yields to other shares, and MPS clients never yield",
    ),
    LeaseRule(
        lambda asked: any(0 < demand.share.request_percent < demand.share.limit_percent for demand in asked.demands),
        "leases guarantee the request and lend idle time; MPS either guarantees or lends",
    ),
    LeaseRule(
        lambda asked: any(demand.share.limit_percent < 100 and len(demand.containers) > 1 for demand in asked.demands),
        "its containers have a common limit, and MPS limits each process",
    ),
)
_BESIDE: Final = "kernels of several pods run side by side under MPS, which leases cannot do"
_NO_ROOM: Final = "no GPU that offers MPS has room for it"

_Outcome = TypeVar("_Outcome")


@functools.lru_cache(maxsize=1024)
def choices(request: Request, default: str = DEFAULT) -> tuple[TriedKind, ...]:
    """Return the kinds to try in this order, at least one; `default`: the cluster's, one of `DEFAULT_ISOLATIONS`."""
    word = request.isolation or default
    whose = f"{contract.ISOLATION} asks for it" if request.isolation else "it is the cluster's default"
    rule = next((rule for rule in LEASES if rule.applies(request)), None)
    if word == AUTO:
        if rule is not None:
            return (TriedKind(Isolation.ARBITER, rule.why),)
        return TriedKind(Isolation.MPS, _BESIDE), TriedKind(Isolation.ARBITER, _NO_ROOM)
    if not request.isolation and word == Isolation.MPS and rule is not None and rule.always:
        return (TriedKind(Isolation.ARBITER, rule.why),)
    return (TriedKind(Isolation(word), whose),)


def kinds(request: Request, default: str = DEFAULT) -> tuple[Isolation, ...]:
    """Return the kinds without the reasons."""
    if (request.isolation or default) == DEFAULT:  # nearly all requests
        return ONLY_ARBITER
    return tuple(choice.isolation for choice in choices(request, default))


def resolved(request: Request, kind: Isolation) -> Request:
    """Return the request with this kind among its constraints."""
    if request.constraints.isolation is kind:
        return request
    return dataclasses.replace(request, constraints=dataclasses.replace(request.constraints, isolation=kind))


def variants(request: Request, default: str) -> list[Request]:
    """Return the request with each kind of isolation that is tried, the last one last."""
    return [resolved(request, kind) for kind in kinds(request, default)]


def place(
    request: Request,
    default: str,
    attempt: Callable[[Request], _Outcome | Refusal],
    *,
    offers: Callable[[Isolation], bool] = lambda _: True,
) -> _Outcome | Refusal:
    """Return the first success of `attempt`, tried with each kind in turn, or else the refusal that is least final.

    offers: whether any GPU takes shares of a kind. Kinds that none takes are skipped, unless that leaves no kind.
    """
    refusals: list[Refusal] = []
    tried = variants(request, default)
    if len(tried) > 1:
        tried = [variant for variant in tried if offers(variant.constraints.isolation)] or tried
    for variant in tried:
        outcome = attempt(variant)
        if not isinstance(outcome, Refusal):
            return outcome
        refusals.append(outcome)
    return min(reversed(refusals), key=lambda refusal: (refusal.lasts, refusal.shortfall))


def why(request: Request, default: str, given: Isolation) -> str:
    """Return why a share of this request has this kind, as a clause."""
    return why_given(given, choices(request, default))


def offers(kinds: Iterable[Isolation], sm_partitions: int) -> str:
    """Return the kinds that a GPU with these SM partitions offers, for people; "" for none."""
    cut = f" in {sm_partitions} equal SM partitions" if sm_partitions else ""
    return " or ".join(f"{kind}{cut if kind is Isolation.MPS else ''}" for kind in kinds)


def in_partition(given: Isolation, gpus: Iterable[Gpu]) -> str:
    """Return a clause about the SM partitions that shares of this kind have on these GPUs, after a comma, or ""."""
    parts = {(gpu.sm_partitions, gpu.compute_capability) for gpu in gpus if gpu.sm_partitions}
    if given is not Isolation.MPS or not parts:
        return ""
    # https://docs.nvidia.com/deploy/mps/: 8 multiprocessors from Hopper on, 4 before
    said = (
        f"one of {count} equal SM partitions, each rounded down to a multiple of "
        f"{8 if capability >= (9, 0) else 4} multiprocessors"
        for count, capability in sorted(parts)
    )
    return f", in {' or '.join(said)}"


def default_kinds(default: str) -> frozenset[Isolation]:
    """Return the kinds of isolation that a small share may get if its pod names none; `default`: the cluster's."""
    return frozenset({Isolation.MPS, Isolation.ARBITER} if default == AUTO else {Isolation(default)})


def why_given(given: Isolation, tried: Iterable[TriedKind]) -> str:
    """Return why a share has this kind, if placement now tries these, as a clause."""
    reasons = dict(tried)
    return reasons.get(given, f"it was given when the pod was placed; now it would be {' or '.join(reasons)}")
