"""Filters: a table of rules that reject GPUs; each gives its reason with numbers.

Rules about permanent properties of a GPU come first, so that a refusal names what can never fit before what is only in
use. `Sees` declares what a rule depends on, so that the engine (`eligibility`) evaluates it once for all GPUs that are
equal in that. So a rule is one function and one line in the table, at any number of GPUs.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import fnmatch
import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gpushare import contract, ledger, mig_shares, quantity
from gpushare.allocation import Isolation, Share
from gpushare.gpunode import Gpu, Mode
from gpushare.modes.hardware_gpu import MAX_MPS_CLIENTS
from gpushare.request import Constraints

_MAX_NAMESPACES = 2  # more are only counted in a message

# (detail, shortfall 0..), or None if the GPU fits.
Verdict = tuple[str, float] | None
Number = Any  # a number, or an array of them


class Amount(NamedTuple):
    """An amount on a GPU: asked for, free (below 0 if overcommitted), and the whole of it, computed on demand."""

    asked: Number
    free: Number
    whole: Callable[[], Number]

    @property
    def shortfall(self) -> Number:
        """The missing amount, as a part of the whole."""
        return (self.asked - self.free) / self.whole()


class Sees(enum.Enum):
    """The facts that a rule depends on, besides the share and the constraints."""

    # the GPU's properties, except index, PCI bus ID and health reason; its UUID only if the pod names it
    GPU = enum.auto()
    # the labels of the pods on it, compared with the pod's own; and whether there are `MAX_MPS_CLIENTS` or more
    LABELS = enum.auto()
    # both, and the MIG devices of the pods on it; only of requests with the isolation mig
    INSTANCES = enum.auto()
    AMOUNT = enum.auto()  # a free amount, which must be at least the requested one


@dataclasses.dataclass(frozen=True, slots=True)
class FilterInput:
    """A share, and the GPU to check it against."""

    gpu: Gpu
    used: ledger.GpuUse
    share: Share
    constraints: Constraints

    @property
    def memory_bytes(self) -> int:
        """The memory that the share requests on this GPU."""
        return self.share.memory.on(self.gpu.memory_bytes)

    @property
    def compute(self) -> Amount:
        """Compute in percent: requested, free, and total."""
        return Amount(self.share.request_percent, 100 - self.used.request_percent, lambda: 100)

    @property
    def memory(self) -> Amount:
        """Memory in bytes: requested, free, and total."""
        total = self.gpu.memory_bytes
        return Amount(self.memory_bytes, total - self.used.memory_bytes, lambda: total or 1)


Check = Callable[[FilterInput], Verdict]


@dataclasses.dataclass(frozen=True, slots=True)
class GpuFilter:
    """A rule that rejects GPUs.

    check: returns why one GPU does not fit. phrase: describes the rejected GPUs in a refusal's counts.
    sees: the facts that the rule depends on. lasts: rejected GPUs can never fit. amount: for a rule about an amount,
    reads it from one input, or from arrays of inputs.
    """

    check: Check
    phrase: str
    sees: Sees = Sees.GPU
    lasts: bool = False
    amount: Callable[[Any], Amount] | None = None


def _mode(ask: FilterInput) -> Verdict:
    if ask.gpu.mode is Mode.FRACTIONAL:
        return None
    is_cut = ask.gpu.mode is Mode.MIG and ask.constraints.isolation is Isolation.MIG
    remedy = ": request its MIG devices by resource, not by annotation" if is_cut else ""
    return f"is in mode {ask.gpu.mode}{remedy}", 9.0


def _closed(ask: FilterInput) -> Verdict:
    return (f"is on a node that takes no new pods: {ask.gpu.closed}", 5.5) if ask.gpu.closed else None


def _health(ask: FilterInput) -> Verdict:
    return None if ask.gpu.healthy else (f"is unhealthy: {ask.gpu.health_reason or 'reason unknown'}", 9.0)


def _cordon(ask: FilterInput) -> Verdict:
    if not ask.gpu.cordoned:
        return None
    wanted = ask.gpu.pending_mode  # `uncordon` does not stop a change of mode
    return (f"is changing to mode {wanted}" if wanted is not None else "is cordoned"), 8.0


def _owner(ask: FilterInput) -> Verdict:
    return ("belongs to another device plugin, and gpushare does not borrow it now", 5.5) if ask.gpu.unowned else None


def _model(ask: FilterInput) -> Verdict:
    wanted = ask.constraints.models
    if not wanted or _is_one_of(ask.gpu.model, wanted):
        return None
    return f"has model {ask.gpu.model}, not {' or '.join(wanted)}", 9.0


@functools.lru_cache(maxsize=4096)
def _is_one_of(model: str, wanted: tuple[str, ...]) -> bool:
    text = model.lower()
    short = text.removeprefix("nvidia ")  # the form that people and `kubectl gpushare top` write
    return any(matches(text) or matches(short) for matches in _matchers(wanted))


@functools.lru_cache(maxsize=64)
def _matchers(globs: tuple[str, ...]) -> tuple[Callable[[str], object], ...]:
    patterns = dict.fromkeys(re.sub(r"\*+", "*", glob.lower()) for glob in globs)
    return tuple(map(_matcher, patterns))


def _matcher(glob: str) -> Callable[[str], object]:
    """Return a matcher; globs in which only "*" is special are not compiled, as compiling takes 100 times longer."""
    if "?" in glob or "[" in glob:
        return re.compile(fnmatch.translate(glob)).match
    return functools.partial(_is_like, glob.split("*")) if "*" in glob else functools.partial(_has_words, _words(glob))


def _has_words(wanted: str, text: str) -> bool:
    """Whether the name contains these words in sequence: `a100-sxm4` matches, but `a10` is another model."""
    return wanted in _words(text)


def _words(text: str) -> str:
    """Return a name's words between single spaces: nvidia-smi writes `A100-SXM4`, and `top` writes `Tesla-T4`."""
    return f" {' '.join(re.split(r'[ -]+', text))} "


def _is_like(parts: list[str], text: str) -> bool:
    """Whether the text contains the parts in order, starts with the first and ends with the last."""
    first, last = parts[0], parts[-1]
    if not (text.startswith(first) and text.endswith(last)):
        return False
    position = len(first)
    for part in parts[1:-1]:
        start = text.find(part, position)
        if start < 0:
            return False
        position = start + len(part)
    return len(text) - position >= len(last)


def _capability(ask: FilterInput) -> Verdict:
    wanted = ask.constraints.min_compute_capability
    if ask.gpu.compute_capability >= wanted:
        return None
    return "has compute capability {}.{}, not {}.{}".format(*ask.gpu.compute_capability, *wanted), 9.0


def _uuid(ask: FilterInput) -> Verdict:
    if ask.constraints.uuids and ask.gpu.uuid not in ask.constraints.uuids:
        return "is not one of the requested UUIDs", 9.0
    if ask.gpu.uuid in ask.constraints.not_uuids:
        return "is one of the excluded UUIDs", 9.0
    return None


def _size(ask: FilterInput) -> Verdict:
    least, limit, key = max(ask.constraints.min_memory_bytes, ask.memory_bytes), ask.share.memory_limit, ""
    if limit is not None:
        limit_bytes = limit.on(ask.gpu.memory_bytes)
        if limit_bytes < ask.memory_bytes:
            said = f"{contract.MEMORY_LIMIT} is {quantity.format_bytes(limit_bytes)} of it"
            return f"is too small: {said}, less than the requested {quantity.format_bytes(ask.memory_bytes)}", 7.0
        if limit_bytes > least:
            least, key = limit_bytes, f" ({contract.MEMORY_LIMIT})"
    if ask.gpu.memory_bytes >= least:
        return None
    total, wanted = map(quantity.format_bytes, (ask.gpu.memory_bytes, least))
    return f"has {total} in total, less than {wanted}{key}", 7.0


def _isolation(ask: FilterInput) -> Verdict:
    wanted, there = ask.constraints.isolation, ask.gpu.isolations
    if wanted in there:
        return None
    if not there:
        return "takes no shares of any isolation", 9.0
    why = ", because it belongs to another device plugin, and gpushare does not reconfigure such GPUs"
    why = why if ask.gpu.owner else ""
    return f"takes no shares with isolation {wanted}, only with {' or '.join(there)}{why}", 9.0


def _partition(ask: FilterInput) -> Verdict:
    # As many shares with these requests as there are partitions fit into 100 %, and one more does not.
    count, percent = ask.gpu.sm_partitions, ask.share.request_percent
    if not count or ask.constraints.isolation is not Isolation.MPS or (percent and 100 // percent == count):
        return None
    least, most = map(quantity.format_compute, (100 // (count + 1) + 1, 100 // count))
    return f"has {count} equal SM partitions, which take requests of {least} to {most}", 9.0


def _mig_profile(ask: FilterInput) -> Verdict:
    why = mig_shares.misfit(ask.gpu, ask.share) if ask.constraints.isolation is Isolation.MIG else ""
    return (why, 7.0) if why else None


def _mig_place(ask: FilterInput) -> Verdict:
    if ask.constraints.isolation is not Isolation.MIG:
        return None
    why = mig_shares.lacks_place(ask.gpu, ask.share, mig_shares.instances(ask.used.holders, ask.gpu.uuid))
    return (why, 4.0) if why else None


def _other_isolation(ask: FilterInput) -> Verdict:
    for holder in ask.used.holders:
        if holder.labels.isolation is not ask.constraints.isolation:
            theirs = holder.labels.isolation
            return f"is shared by {holder.pod}, which has isolation {theirs}, not {ask.constraints.isolation}", 5.0
    return None


def _clients(ask: FilterInput) -> Verdict:
    count = len(ask.used.holders)
    if ask.constraints.isolation is not Isolation.MPS or count < MAX_MPS_CLIENTS:
        return None
    most = f"an MPS daemon takes at most {MAX_MPS_CLIENTS} processes"
    return f"is shared by {count} pods, each with a process or more, and {most}", 5.0


def _exclusion(ask: FilterInput) -> Verdict:
    mine = ask.constraints.exclusion
    for holder in ask.used.holders:
        if holder.labels.exclusion != mine:
            theirs = (
                f"the exclusion label {holder.labels.exclusion}" if holder.labels.exclusion else "no exclusion label"
            )
            return f"is shared by {holder.pod}, which has {theirs}", 5.0
    return None


def _anti_affinity(ask: FilterInput) -> Verdict:
    mine = ask.constraints.anti_affinity
    for holder in ask.used.holders if mine else ():
        if holder.labels.anti_affinity == mine:
            return f"is shared by {holder.pod}, which has the same anti-affinity label {mine}", 5.0
    return None


def _affinity(ask: FilterInput) -> Verdict:
    mine = ask.constraints.affinity
    if not mine or not ask.used.holders or any(holder.labels.affinity == mine for holder in ask.used.holders):
        return None
    return f"is in use, and none of its pods has the affinity label {mine}", 5.0


def _compute(ask: FilterInput) -> Verdict:
    amount = ask.compute
    if amount.free >= amount.asked:
        return None
    reserved = _reserved(ask, lambda held: held[0], quantity.format_compute)
    return f"has {quantity.format_compute(max(0, amount.free))} of its compute free{reserved}", amount.shortfall


def _memory(ask: FilterInput) -> Verdict:
    amount = ask.memory
    if amount.free >= amount.asked:
        return None
    total = quantity.format_bytes(ask.gpu.memory_bytes)
    reserved = _reserved(ask, lambda held: held[1], quantity.format_bytes)
    free = quantity.format_bytes(max(0, amount.free))
    return f"has {free} of {total} free{reserved}{ask.used.lent_clause}", amount.shortfall


def _reserved(ask: FilterInput, amount: Callable[[tuple[int, int]], int], write: Callable[[int], str]) -> str:
    """Return a clause with the amount of unclaimed reservations, their namespaces, and when the last one expires."""
    until = max((holder.reserved_until or 0.0 for holder in ask.used.holders if holder.is_unclaimed), default=0.0)
    if not until:
        return ""
    waited_for = [holder for holder in ask.used.holders if holder.is_unclaimed]
    total = sum(amount(ledger.held(allocation, ask.gpu.uuid)) for allocation in waited_for)
    if not total:
        return ""
    namespaces = sorted({allocation.pod.namespace for allocation in waited_for})
    whose = f"{len(namespaces)} namespaces" if len(namespaces) > _MAX_NAMESPACES else " and ".join(namespaces)
    end = datetime.datetime.fromtimestamp(until, tz=datetime.UTC)
    until_text = f"until {end:%H:%M:%S} UTC at the latest"
    return f", {write(total)} is reserved for pods of {whose} that have not appeared yet, {until_text}"


# The engine, refusals and `why` all use this table.
RULES: Final[Mapping[str, GpuFilter]] = {
    "mode": GpuFilter(_mode, "not shared by annotation"),
    "model": GpuFilter(_model, "of another model", lasts=True),
    "compute-capability": GpuFilter(_capability, "of too low a compute capability", lasts=True),
    "uuid": GpuFilter(_uuid, "excluded by UUID", lasts=True),
    "isolation": GpuFilter(_isolation, "without that isolation", lasts=True),
    "partition": GpuFilter(_partition, "with SM partitions for other requests", lasts=True),
    "mig-profile": GpuFilter(_mig_profile, "without a MIG profile that holds it", lasts=True),
    "size": GpuFilter(_size, "too small", lasts=True),
    "closed": GpuFilter(_closed, "on a node that takes no new pods"),
    "owner": GpuFilter(_owner, "of another device plugin"),
    "health": GpuFilter(_health, "unhealthy"),
    "cordon": GpuFilter(_cordon, "cordoned"),
    "other-isolation": GpuFilter(_other_isolation, "used by pods with another isolation", Sees.LABELS),
    "clients": GpuFilter(_clients, "with as many pods as an MPS daemon takes", Sees.LABELS),
    "mig-place": GpuFilter(_mig_place, "without a place for its MIG device", Sees.INSTANCES),
    "exclusion": GpuFilter(_exclusion, "used by pods with another exclusion label", Sees.LABELS),
    "anti-affinity": GpuFilter(_anti_affinity, "used by pods with the same anti-affinity label", Sees.LABELS),
    "affinity": GpuFilter(_affinity, "used by pods without the affinity label", Sees.LABELS),
    "compute": GpuFilter(_compute, "with too little compute free", Sees.AMOUNT, amount=operator.attrgetter("compute")),
    "memory": GpuFilter(_memory, "with too little memory free", Sees.AMOUNT, amount=operator.attrgetter("memory")),
}


def reject(ask: FilterInput) -> tuple[str, str, float] | None:
    """Return `(rule, detail, shortfall)` of the first rule that rejects the GPU, or None if it fits."""
    empty = FilterInput(ask.gpu, ledger.NOTHING, ask.share, ask.constraints)
    for name, rule in RULES.items():
        verdict = rule.check(empty if rule.sees is Sees.GPU else ask)
        if verdict is not None:
            return name, *verdict
    return None
