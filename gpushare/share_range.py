"""Share range: the defaults, minima and maxima that a Namespace's annotations set for the shares of its pods. Pure.

It is to shares what a LimitRange is to resources. Defaults are written into a pod when it is created, so what it holds
never depends on the Namespace afterwards. Bounds count when a pod is created or resized, and pods that exist keep their
shares. An annotation that cannot be read fails closed: a bound that an administrator believes in must not be absent.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from gpushare import annotation_values, contract, errors, pod, quantity
from gpushare.allocation import Isolation, Share
from gpushare.request import Request


class AmountRow(NamedTuple):
    """An amount of a share. least: the smallest valid value. of: the amount, None for memory as a percentage."""

    read: Callable[[str], int]
    write: Callable[[int], str]
    least: int
    of: Callable[[Share], int | None]
    rules: tuple[str, ...]


def _of(prefix: str, key: str) -> str:
    """Return the Namespace's key for a rule about an amount."""
    return prefix + key.removeprefix(contract.PREFIX)


_AMOUNT_PREFIXES: Final = (contract.MIN_PREFIX, contract.DEFAULT_PREFIX, contract.MAX_PREFIX)
PREFIXES: Final = (*_AMOUNT_PREFIXES, contract.REQUIRE_PREFIX)
_NO_MIN: Final = (contract.DEFAULT_PREFIX, contract.MAX_PREFIX)  # a limit is at least the request
_ONLY_MAX: Final = (contract.MAX_PREFIX,)
_COMPUTE: Final = (quantity.parse_compute, quantity.format_compute)
_BYTES: Final = (annotation_values.device_bytes, quantity.format_exactly)

# One row per amount, by its key on pods. A Namespace's key is the prefix of a rule and the same stem.
AMOUNTS: Final[Mapping[str, AmountRow]] = {
    contract.REQUEST: AmountRow(*_COMPUTE, 0, lambda share: share.request_percent, _AMOUNT_PREFIXES),
    contract.LIMIT: AmountRow(*_COMPUTE, 1, lambda share: share.limit_percent, _NO_MIN),
    contract.MEMORY_LIMIT: AmountRow(*_BYTES, 1, lambda share: (share.memory_limit or share.memory).bytes, _ONLY_MAX),
    contract.MEMORY: AmountRow(*_BYTES, 1, lambda share: share.memory.bytes, _AMOUNT_PREFIXES),
}
_ROWS: Final = {_of(prefix, key): row for key, row in AMOUNTS.items() for prefix in row.rules}
_REQUIRED: Final = _of(contract.REQUIRE_PREFIX, contract.ISOLATION)
_REQUIRABLE: Final = (Isolation.ARBITER, Isolation.MPS, Isolation.MIG)  # those with a memory limit
KEYS: Final = (*_ROWS, _REQUIRED)  # of Namespaces
# Pairs of these keys whose first value must not exceed the second.
_ORDERED: Final = (
    *(
        (_of(lower, key), _of(upper, key))
        for key in AMOUNTS
        for lower, upper in itertools.combinations(_AMOUNT_PREFIXES, 2)
    ),
    *((_of(lower, contract.REQUEST), _of(contract.MAX_PREFIX, contract.LIMIT)) for lower in _AMOUNT_PREFIXES[:2]),
)


@dataclasses.dataclass(frozen=True, slots=True)
class ShareRange:
    """The range of a namespace. values: by the Namespace's key. problem: why it cannot be read; no pod is admitted.

    isolation: of all shares; empty: as the pod asks.
    """

    namespace: str
    values: Mapping[str, int] = dataclasses.field(default_factory=dict)
    isolation: str = ""
    problem: str = ""

    def with_defaults(self, manifest: pod.PodJson) -> pod.PodJson:
        """Return a pod that asks for shares with the defaults that its annotations lack; itself if there are none."""
        annotations = pod.annotations_of(manifest)
        added = {key: text for suffix in _suffixes(annotations) for key, text in self._added(annotations, suffix)}
        if self.isolation and contract.ISOLATION not in annotations:
            added[contract.ISOLATION] = self.isolation
        if not added:
            return manifest
        return {**manifest, "metadata": {**manifest["metadata"], "annotations": {**annotations, **added}}}

    def excess(self, request: Request) -> str | None:
        """Return why pods of this namespace may not have such shares, as a sentence; None if they may."""
        if self.problem:
            return self.problem
        if self.isolation and request.isolation not in {"", self.isolation}:  # a pod without it is older than the rule
            only = errors.quoted(self.isolation)
            return (
                f"{contract.ISOLATION} is {errors.quoted(request.isolation)}, but the namespace "
                f"{errors.quoted(self.namespace)} has {_REQUIRED} {only}: remove {contract.ISOLATION}, or write {only}"
            )
        for demand in request.demands:
            for key, row in AMOUNTS.items():
                amount = row.of(demand.share)
                for prefix, is_outside, remedy in _BOUNDS:
                    bound, bounding = self._value(prefix, key), _of(prefix, key)
                    if bounding == _MAX_MEMORY_LIMIT and bound is None and demand.share.memory_limit is not None:
                        bound, bounding = self.values.get(_MAX_MEMORY), _MAX_MEMORY
                    if bound is None or (amount is not None and not is_outside(amount, bound)):
                        continue
                    part = (demand.share.memory_limit or demand.share.memory).percent
                    asked = row.write(amount) if amount is not None else f"{part}% of a GPU"
                    return (
                        f"{key} of container {errors.quoted(demand.containers[0])} is {asked}, but the namespace "
                        f"{errors.quoted(self.namespace)} has {bounding} {errors.quoted(row.write(bound))}: "
                        f"write {remedy} {errors.quoted(row.write(bound))}"
                    )
        return None

    def _value(self, prefix: str, key: str) -> int | None:
        return self.values.get(_of(prefix, key))

    def _added(self, annotations: Mapping[str, Any], suffix: str) -> Iterator[tuple[str, str]]:
        """Yield what a share lacks; `suffix`: `.NAME` for the keys of one container.

        A share without request and memory is a whole GPU, which only a default request changes. A default request is at
        most the limit, and a default limit at least the request, so that no default makes a valid pod invalid.
        """
        texts = {key: annotations.get(key + suffix) for key in AMOUNTS}
        defaults = {key: self._value(contract.DEFAULT_PREFIX, key) for key in AMOUNTS}
        if texts[contract.REQUEST] is texts[contract.MEMORY] is None and not defaults[contract.REQUEST]:
            return
        request = defaults[contract.REQUEST] or 0
        if request and texts[contract.LIMIT] is not None:
            request = defaults[contract.REQUEST] = min(request, _percent(texts[contract.LIMIT]))
        if texts[contract.REQUEST] is not None:
            request = _percent(texts[contract.REQUEST])
        limit = defaults[contract.LIMIT] or self._value(contract.MAX_PREFIX, contract.LIMIT)
        defaults[contract.LIMIT] = None if limit is None else max(limit, request)
        for key, default in defaults.items():
            if texts[key] is None and default is not None:
                yield key + suffix, AMOUNTS[key].write(default)


UNBOUNDED: Final = ShareRange("")
_MAX_MEMORY: Final = _of(contract.MAX_PREFIX, contract.MEMORY)
_MAX_MEMORY_LIMIT: Final = _of(contract.MAX_PREFIX, contract.MEMORY_LIMIT)

_BOUNDS: Final[tuple[tuple[str, Callable[[int, int], bool], str], ...]] = (
    (contract.MIN_PREFIX, lambda amount, bound: amount < bound, "at least"),
    (contract.MAX_PREFIX, lambda amount, bound: amount > bound, "at most"),
)


def read(namespace: str, annotations: Mapping[str, str]) -> ShareRange:
    """Read the annotations of a Namespace."""
    values: dict[str, int] = {}
    isolation = ""
    try:
        for key in sorted(annotations):
            if key == _REQUIRED:
                isolation = _read_isolation(annotations[key])
            elif key.startswith(PREFIXES):
                values[key] = _read_value(key, annotations[key])
        _reject_contradictions(values, annotations)
    except errors.RequestError as error:
        problem = (
            f"{error}: this is an annotation of the namespace {errors.quoted(namespace)}, and its pods get no share "
            "until an administrator corrects or removes it"
        )
        return ShareRange(namespace, problem=problem)
    return ShareRange(namespace, values, isolation)


def of_namespace(namespace: Mapping[str, Any]) -> ShareRange:
    """Read the range of a Namespace."""
    return read(pod.namespaced_name(namespace)[1], pod.annotations_of(namespace))


def _read_value(key: str, text: Any) -> int:
    if key not in _ROWS:
        raise errors.RequestError(key, str(text), f"is not a key that gpushare knows: it knows {', '.join(KEYS)}")
    if not isinstance(text, str):
        raise errors.RequestError(key, str(text), "is not a string: put it in quotes")
    row = _ROWS[key]
    try:
        value = row.read(text.strip())
    except errors.QuantityError as error:
        remedy = str(error).removeprefix(errors.quoted(text.strip())).strip()
        raise errors.RequestError(key, text, remedy) from error
    if value < row.least:
        raise errors.RequestError(key, text, "is zero, with which no share could be used")
    return value


def _read_isolation(text: Any) -> str:
    if text not in _REQUIRABLE:
        raise errors.RequestError(_REQUIRED, str(text), f"is not one of {', '.join(_REQUIRABLE)}")
    return str(text)


def _reject_contradictions(values: Mapping[str, int], annotations: Mapping[str, str]) -> None:
    for lower, upper in _ORDERED:
        if lower in values and upper in values and values[lower] > values[upper]:
            remedy = f"is more than {upper} {errors.quoted(annotations[upper])}"
            raise errors.RequestError(lower, annotations[lower], remedy)


def _suffixes(annotations: Mapping[str, Any]) -> list[str]:
    keys = list(pod.share_keys(annotations))
    stems = (next(known for known in contract.SHARE_KEYS if f"{key}.".startswith(f"{known}.")) for key in keys)
    return sorted({key.removeprefix(stem) for key, stem in zip(keys, stems, strict=True)})


def _percent(text: Any) -> int:
    """Return the request as it will be parsed; 0 if it is invalid, which the parser says."""
    try:
        return quantity.parse_compute(str(text).strip())
    except errors.QuantityError:
        return 0
