"""PlacementProfile: how the webhook chooses between GPUs that fit: its policy and the mix it has learned.

The placer publishes the profile in a ConfigMap, so that `fit`, `why` and `defrag` choose as the webhook does.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from gpushare import errors, isolation, policies
from gpushare.allocation import Memory
from gpushare.gpu_capacity import Kinds
from gpushare.mix import NO_HOST, Host, Mix, RequestClass
from gpushare.policies import TypicalOf
from gpushare.request import CONSTRAINTS, DEFAULT_ISOLATIONS, NO_CONSTRAINTS, Constraints

MAX_BYTES: Final = 256 << 10  # of the mix: a ConfigMap holds 1 MiB, and users choose the model names in it
_POLICY, _ISOLATION, _MIX, _PREEMPTION = "policy", "isolation", "mix", "preemption"  # the ConfigMap's keys
# The constraints of a class with their defaults, because a placer of another release may write fewer or more of them.
_DEFAULTS: Final = {row.field: getattr(NO_CONSTRAINTS, row.field) for row in CONSTRAINTS.values() if row.of_model}


@dataclasses.dataclass(frozen=True, slots=True)
class PlacementProfile:
    """`policy`, `isolation`: used for pods that name none. mix: the last one learned. preemption: whether it is on."""

    policy: str = policies.DEFAULT
    mix: Mix = dataclasses.field(default_factory=Mix)
    isolation: str = DEFAULT_ISOLATIONS[0]
    preemption: bool = False

    @property
    def typical_of(self) -> TypicalOf:
        """A function from a GPU's bytes to the mix on such a GPU."""
        return functools.cache(self.mix.typical)

    @property
    def kinds(self) -> Kinds:
        """The kinds of isolation that a small share may get if its pod names none."""
        return isolation.default_kinds(self.isolation)

    def data(self) -> dict[str, str]:
        """Return the entries of the ConfigMap; a mix that is too long is cut to its most common classes."""
        mix = self.mix
        while len(text := json.dumps(_document(mix))) > MAX_BYTES:
            mix = mix.cut(len(mix.weights) // 2)
        preempts = "true" if self.preemption else "false"
        return {_POLICY: self.policy, _ISOLATION: self.isolation, _MIX: text, _PREEMPTION: preempts}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> PlacementProfile:
        """Parse the entries of the ConfigMap, with defaults for missing ones. Raises CodecError."""
        policy = str(data.get(_POLICY) or policies.DEFAULT)
        if policy not in policies.POLICIES:
            known = ", ".join(policies.POLICIES)
            raise errors.CodecError(f"unknown policy {errors.quoted(policy)}: this plugin knows {known}")
        kind = str(data.get(_ISOLATION) or DEFAULT_ISOLATIONS[0])
        if kind not in DEFAULT_ISOLATIONS:
            known = ", ".join(DEFAULT_ISOLATIONS)
            raise errors.CodecError(f"unknown isolation {errors.quoted(kind)}: this plugin knows {known}")
        try:
            document = json.loads(data.get(_MIX) or '{"pods": 0, "classes": []}')
            weights = dict(map(_read, document["classes"]))
            gpus = _whole(document.get("gpus", 0))
            largest = _whole(document.get("largest", 0), least=min(gpus, 1))
            others = _host(document["others"]) if "others" in document else NO_HOST  # an earlier release writes none
            mix = Mix(weights, pods=_whole(document["pods"]), gpus=gpus, largest=largest, others=others)
            # Without the cluster's GPUs, each replica would add those that it knows at the moment.
            return cls(policy, mix if gpus else Mix(), kind, data.get(_PREEMPTION) == "true")
        except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = errors.shortened(repr(error))
            raise errors.CodecError(f"the mix is invalid: {why}; the placer writes it again when it starts") from error


def _document(mix: Mix) -> dict[str, Any]:
    cluster = {"pods": mix.pods, "gpus": mix.gpus, "largest": mix.largest, "others": dataclasses.asdict(mix.others)}
    classes = sorted(mix.weights.items(), key=lambda entry: (-entry[1], repr(entry[0])))
    return {**cluster, "classes": [*map(_class, classes)]}


def _class(entry: tuple[RequestClass, float]) -> dict[str, Any]:
    asked, weight = entry
    document = dataclasses.asdict(asked)
    constraints = document.pop("constraints")
    return {**document, **{field: constraints[field] for field in _DEFAULTS}, "weight": weight}


def _read(entry: Mapping[str, Any]) -> tuple[RequestClass, float]:
    memory, host, weight = entry["memory"], entry["host"], float(entry["weight"])
    constraints = {field: _like(default, entry[field]) for field, default in _DEFAULTS.items() if field in entry}
    asked = RequestClass(
        gpus=_whole(entry["gpus"], least=1),
        request_percent=_whole(entry["request_percent"]),
        memory=Memory(**{key: _whole(memory[key]) for key in ("bytes", "percent") if memory[key] is not None}),
        host=_host(host),
        constraints=Constraints(**constraints),
    )
    if not 0 < weight < math.inf:
        raise ValueError(f"a weight of {weight}")
    return asked, weight


def _host(document: Mapping[str, Any]) -> Host:
    return Host(_whole(document["cpu_milli"]), _whole(document["memory_bytes"]))


def _like(default: Any, value: Any) -> Any:
    """Convert a constraint's value to the type of its default: an integer, a word, a string, or a tuple of these."""
    if isinstance(default, enum.Enum):
        return type(default)(value)
    if isinstance(default, tuple):
        if default and len(value) != len(default):
            raise ValueError(f"{value!r} in place of {len(default)} numbers")
        return tuple(_like(default[0] if default else "", part) for part in value)
    return _whole(value) if isinstance(default, int) else str(value)


def _whole(value: Any, *, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 2**63:
        raise ValueError(f"{value!r} in place of a whole number")
    return value
