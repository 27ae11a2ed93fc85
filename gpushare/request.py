"""Request: a pod's annotations, parsed and validated, or one error that names the key."""

from __future__ import annotations

import bisect
import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from gpushare import annotation_values, caps, contract, errors, group_size, pod, quantity
from gpushare.allocation import ALL_STEPS, TO_THE_END, GivenShare, Isolation, Labels, Memory, Share, Steps
from gpushare.gpunode import Gpu
from gpushare.group_size import NO_GROUP, GroupSize
from gpushare.policies import POLICIES

AUTO: Final = "auto"  # gpushare chooses the isolation
# What may be the cluster's default, the default first: kinds of isolation with a memory limit.
DEFAULT_ISOLATIONS: Final = (str(Isolation.ARBITER), str(Isolation.MPS), AUTO)

_Value = TypeVar("_Value")


@dataclasses.dataclass(frozen=True, slots=True)
class Demand:
    """`gpus` distinct GPUs, each with this share, used together by `containers`."""

    containers: tuple[str, ...]
    share: Share
    gpus: int = 1
    steps: Steps = ALL_STEPS

    def __str__(self) -> str:
        """Format for a sentence: `0.5 GPU with 40Gi`, `2 GPUs, each 1 GPU with 100% of the memory`."""
        return str(self.share) if self.gpus == 1 else f"{self.gpus} GPUs, each {self.share}"

    def on(self, gpus: Iterable[Gpu]) -> GivenShare:
        """Return the given share on these GPUs."""
        gpus = sorted(gpus, key=lambda gpu: gpu.index)
        amounts = self.share.on_all([gpu.memory_bytes for gpu in gpus])
        return GivenShare(self.containers, tuple(gpu.uuid for gpu in gpus), steps=self.steps, **amounts)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """The GPUs that a pod accepts; empty means any. Each field has its row in `CONSTRAINTS`."""

    models: tuple[str, ...] = ()  # globs, matched without regard to case
    min_memory_bytes: int = 0
    min_compute_capability: tuple[int, int] = (0, 0)
    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()
    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""
    isolation: Isolation = Isolation.ARBITER  # until `Request.isolation` is resolved, also for `auto`

    @property
    def labels(self) -> Labels:
        """The labels that other pods on the same GPU are checked against."""
        return Labels(self.affinity, self.anti_affinity, self.exclusion, self.isolation)

    @property
    def of_model(self) -> Constraints:
        """The constraints on the kind of GPU, which other pods are likely to share; the mix is learned by them."""
        return Constraints(**{row.field: getattr(self, row.field) for row in CONSTRAINTS.values() if row.of_model})


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """Everything that a pod's annotations ask for."""

    demands: tuple[Demand, ...]
    constraints: Constraints = Constraints()
    policy: str = ""  # empty: the cluster's
    isolation: str = ""  # as written, `auto` included; empty: the cluster's default
    group: str = ""
    group_size: GroupSize = NO_GROUP
    latency: bool = False
    no_evict: bool = False  # never moved to make room for other pods


def parse(manifest: pod.PodJson) -> Request:
    """Parse the request of a pod that asks for a share. Raises `RequestError`: key, value and remedy in a sentence."""
    annotations, names = pod.annotations_of(manifest), pod.container_names(manifest)
    sidecars = tuple((str(each.get("name") or ""), pod.is_sidecar(each)) for each in pod.init_containers(manifest))
    return read(annotations, names, pod.default_container(manifest), init_containers=sidecars)


def read(
    annotations: Mapping[str, str],
    containers: tuple[str, ...],
    default: str,
    *,
    init_containers: tuple[tuple[str, bool], ...] = (),
) -> Request:
    """Parse the annotations of a pod with these containers; `default` gets the share unless another is named.

    init_containers: those among them, in order, and whether each is a sidecar. Without, all containers run at once.
    """
    own = {key: value for key, value in annotations.items() if key.startswith(contract.PREFIX)}
    _reject_unknown(own, containers)
    asked = tuple(sorted((key, value) for key, value in own.items() if not is_result_key(key)))
    return _parsed(asked, containers, default, init_containers)


@functools.lru_cache(maxsize=1024)
def _parsed(
    annotations: tuple[tuple[str, str], ...],
    names: tuple[str, ...],
    default: str,
    init_containers: tuple[tuple[str, bool], ...],
) -> Request:
    """Parse valid annotations. Cached: a pod is read several times, and pods of one owner have the same annotations."""
    values = dict(annotations)
    group = _get(values, contract.GROUP, annotation_values.label, "")
    size = _get(values, contract.GROUP_SIZE, group_size.parse, NO_GROUP)
    if bool(group) != bool(size.most):
        key, other = (contract.GROUP, contract.GROUP_SIZE) if group else (contract.GROUP_SIZE, contract.GROUP)
        raise errors.RequestError(key, group or str(size), f"also requires {other}")
    constraints = {
        row.field: _get(values, key, row.read, getattr(NO_CONSTRAINTS, row.field)) for key, row in CONSTRAINTS.items()
    }
    request = Request(
        demands=_stepped(_demands(values, names, default), init_containers),
        constraints=Constraints(**constraints),
        policy=_get(values, contract.POLICY, annotation_values.one_of(tuple(POLICIES)), ""),
        isolation=_get(values, contract.ISOLATION, annotation_values.one_of((AUTO, *Isolation)), ""),
        group=group,
        group_size=size,
        latency=_get(values, contract.LATENCY, annotation_values.truth, False),
        no_evict=_get(values, contract.NO_EVICT, annotation_values.truth, False),
    )
    _reject_contradictions(request)
    return request


def _reject_contradictions(request: Request) -> None:
    """Reject an isolation that cannot give what else the pod asks for."""
    kind, said = request.isolation, ""
    if kind in {Isolation.MIG, Isolation.NONE} and any(demand.share.memory_limit for demand in request.demands):
        has = "a MIG device has its own memory" if kind == Isolation.MIG else "nothing enforces a limit"
        said = f'cannot be combined with {contract.MEMORY_LIMIT}, as {has}: remove one of them, or write "arbiter"'
    elif kind == Isolation.MPS and request.latency:
        said = f'has no turns in which a pod with {contract.LATENCY} could go first: remove one, or write "auto"'
    elif kind == Isolation.MIG and request.group_size.is_gang:
        said = f"cannot be combined with {contract.GROUP}, as MIG devices cannot exchange data: remove one of them"
    elif kind == Isolation.MIG and len(request.demands) > 1:
        said = f"gives a pod one MIG device: have its containers use it together ({contract.CONTAINER})"
    elif kind in {Isolation.MPS, Isolation.MIG} and any(demand.gpus > 1 for demand in request.demands):
        part = "one MPS daemon" if kind == Isolation.MPS else "one MIG device"
        said = f'cannot be combined with {contract.GPUS}, as a process can use {part}: write "arbiter", or use 1 GPU'
    if said:
        raise errors.RequestError(contract.ISOLATION, kind, said)


def _reject_unknown(annotations: Mapping[str, str], names: tuple[str, ...]) -> None:
    for key, value in annotations.items():
        if not isinstance(value, str):
            raise errors.RequestError(key, str(value), "is not a string: put it in quotes")
        if len(value) > caps.VALUE:
            raise errors.RequestError(key, value, f"is {len(value)} characters long: the maximum is {caps.VALUE}")
        if key in contract.REQUEST_KEYS or is_result_key(key):
            continue
        known = next((known for known in contract.PER_CONTAINER_KEYS if key.startswith(known + ".")), None)
        if known is None:
            hint = f"did you mean {likely}? " if (likely := meant(key)) else ""
            keys = ", ".join(name.removeprefix(contract.PREFIX) for name in contract.REQUEST_KEYS)
            raise errors.RequestError(key, value, f"is not a gpushare key: {hint}it knows {keys}")
        container = key.removeprefix(known + ".")
        if container not in names:
            raise errors.RequestError(key, value, _no_such_container(container, names))


def meant(key: str) -> str:
    """Return the request key that `key` is or resembles most; empty if there is none or it is a result key."""
    stem, dot, container = key.removeprefix(contract.PREFIX).partition(".")
    stems = [known.removeprefix(contract.PREFIX) for known in contract.REQUEST_KEYS]
    close = [] if is_result_key(key) else difflib.get_close_matches(stem.lower(), stems, n=1, cutoff=0.7)
    return f"{contract.PREFIX}{close[0]}{dot}{container}" if close else ""


def is_result_key(key: str) -> bool:
    """Whether only gpushare itself may write this annotation."""
    return key in contract.RESULT_KEYS or key.startswith(contract.GPU_UUIDS + ".")


def _demands(annotations: Mapping[str, str], names: tuple[str, ...], default: str) -> tuple[Demand, ...]:
    own = [name for name in names if any(f"{key}.{name}" in annotations for key in contract.PER_CONTAINER_KEYS)]
    if len(own) > caps.SHARES:
        key = next(f"{key}.{own[-1]}" for key in contract.PER_CONTAINER_KEYS if f"{key}.{own[-1]}" in annotations)
        said = f"is for one of {len(own)} containers with their own share: at most {caps.SHARES} may have one"
        raise _invalid(annotations, key, f"{said}; others can use a share together ({contract.CONTAINER})")
    demands = []
    if any(key in annotations for key in contract.SHARE_KEYS):
        sharers: tuple[str, ...] = (default,) if default else ()
        sharers = _get(annotations, contract.CONTAINER, annotation_values.list_of(caps.SHARERS), sharers)
        for name in sharers:
            if name not in names:
                raise errors.RequestError(
                    contract.CONTAINER, annotations.get(contract.CONTAINER, name), _no_such_container(name, names)
                )
            if name in own and contract.CONTAINER in annotations:
                said = f"names {errors.quoted(name)}, which has its own keys: use one or the other"
                raise _invalid(annotations, contract.CONTAINER, said)
        sharers = tuple(name for name in dict.fromkeys(sharers) if name not in own)
        if sharers:
            demands.append(_demand(annotations, "", sharers))
    elif contract.CONTAINER in annotations:
        said = f"applies to no share: add {contract.REQUEST} or {contract.MEMORY}"
        raise _invalid(annotations, contract.CONTAINER, said)
    demands += [_demand(annotations, f".{name}", (name,)) for name in own]
    return tuple(demands)


def _stepped(demands: tuple[Demand, ...], init_containers: Iterable[tuple[str, bool]]) -> tuple[Demand, ...]:
    """Return the demands with the steps of each, from the first start of its containers to the last end.

    An init container ends before the next one starts, unless it is a sidecar. Only steps at which a share comes into
    use count, so that an injected container without a share changes nothing.
    """
    inits = {name: Steps(at, TO_THE_END if is_sidecar else at) for at, (name, is_sidecar) in enumerate(init_containers)}
    app = Steps(len(inits))
    lives = [[inits.get(name, app) for name in demand.containers] for demand in demands]
    spans = [Steps(min(life.first for life in of), max(life.last for life in of)) for of in lives]
    starts = sorted({span.first for span in spans})
    if all(span.last >= starts[-1] for span in spans):
        return demands  # all are in use together at some moment
    steps = (
        Steps(
            starts.index(span.first),
            TO_THE_END if span.last >= starts[-1] else bisect.bisect_right(starts, span.last) - 1,
        )
        for span in spans
    )
    return tuple(dataclasses.replace(demand, steps=within) for demand, within in zip(demands, steps, strict=True))


def _demand(annotations: Mapping[str, str], suffix: str, containers: tuple[str, ...]) -> Demand:
    keys = {known: known + suffix for known in contract.PER_CONTAINER_KEYS}
    gpus = _get(annotations, keys[contract.GPUS], annotation_values.count, 1)
    asks_memory = keys[contract.MEMORY] in annotations
    default_request = 0 if asks_memory else 100
    request_percent = _get(annotations, keys[contract.REQUEST], quantity.parse_compute, default_request)
    limit_percent = _get(annotations, keys[contract.LIMIT], quantity.parse_compute, 100)
    if limit_percent < request_percent or limit_percent == 0:
        key = keys[contract.LIMIT]
        if not asks_memory and keys[contract.REQUEST] not in annotations:
            said = f"without a request means a limit on a whole GPU, which must be 1: add {keys[contract.REQUEST]}"
            raise _invalid(annotations, key, said)
        least = quantity.format_compute(max(request_percent, 1))
        raise _invalid(annotations, key, f"is less than the request: write {least} to 1, or omit it for 1")
    memory = _get(annotations, keys[contract.MEMORY], annotation_values.memory, Memory(percent=request_percent))
    if not memory.bytes and not memory.percent:
        key = keys[contract.MEMORY] if asks_memory else keys[contract.REQUEST]
        said = f"gives no memory: set {keys[contract.MEMORY]} to more than 0, such as 1Gi"
        raise _invalid(annotations, key, said)
    memory_limit = _memory_limit(annotations, keys, memory) if keys[contract.MEMORY_LIMIT] in annotations else None
    return Demand(containers=containers, share=Share(request_percent, limit_percent, memory, memory_limit), gpus=gpus)


def _memory_limit(annotations: Mapping[str, str], keys: Mapping[str, str], memory: Memory) -> Memory:
    """Return the memory limit. A filter compares one in other units than the request with it on each GPU."""
    key, own = keys[contract.MEMORY_LIMIT], keys[contract.MEMORY]
    if own not in annotations:
        raise _invalid(annotations, key, f"is a limit without a request: add {own}")
    limit = _get(annotations, key, annotation_values.memory, memory)
    both = (limit.bytes, memory.bytes), (limit.percent, memory.percent)
    if any(most is not None and least is not None and most < least for most, least in both):
        raise _invalid(annotations, key, f"is less than the request: write at least {annotations[own]}")
    return limit


def _get(annotations: Mapping[str, str], key: str, read: Callable[[str], _Value], default: _Value) -> _Value:
    if key not in annotations:
        return default
    try:
        return read(annotations[key].strip())
    except errors.QuantityError as error:
        remedy = str(error).removeprefix(errors.quoted(annotations[key].strip())).strip()
        raise _invalid(annotations, key, remedy) from error


def _invalid(annotations: Mapping[str, str], key: str, remedy: str) -> errors.RequestError:
    return errors.RequestError(key, annotations[key], remedy)


def _isolation(text: str) -> Isolation:
    return Isolation.ARBITER if text == AUTO else Isolation(annotation_values.one_of((AUTO, *Isolation))(text))


class ConstraintRow(NamedTuple):
    """A constraint. field: in `Constraints`. read: parses the annotation. of_model: see `Constraints.of_model`."""

    field: str
    read: Callable[[str], Any]
    of_model: bool = False


# One row per annotation that restricts the GPUs. The parser, the changes that `why` tries, the learned mix and the
# published profile all use this table.
CONSTRAINTS: Final[Mapping[str, ConstraintRow]] = {
    contract.MODEL: ConstraintRow("models", annotation_values.models, of_model=True),
    contract.MIN_MEMORY: ConstraintRow("min_memory_bytes", annotation_values.device_bytes, of_model=True),
    contract.MIN_COMPUTE_CAPABILITY: ConstraintRow(
        "min_compute_capability", annotation_values.capability, of_model=True
    ),
    contract.UUID: ConstraintRow("uuids", annotation_values.names),
    contract.NOT_UUID: ConstraintRow("not_uuids", annotation_values.names),
    contract.AFFINITY: ConstraintRow("affinity", annotation_values.label),
    contract.ANTI_AFFINITY: ConstraintRow("anti_affinity", annotation_values.label),
    contract.EXCLUSION: ConstraintRow("exclusion", annotation_values.label),
    contract.ISOLATION: ConstraintRow("isolation", _isolation, of_model=True),
}
NO_CONSTRAINTS = Constraints()


def _no_such_container(name: str, names: tuple[str, ...]) -> str:
    there = ", ".join(names) or "none"
    return f"names the container {errors.quoted(name)}, which the pod does not have: it has {there}"
