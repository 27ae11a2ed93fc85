"""Selectors of labels and of nodes, read once and matched often.

A requirement that is invalid (`Gt` of a word, `In` of nothing, an operator nobody knows, a value that no label can
have) matches nothing, as the scheduler has it: its whole term is void, whatever else is in it.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_MAX: Final = 2**63
_MANY: Final = 8
NAME_FIELD: Final = "metadata.name"

Labels = Mapping[str, str]
Values = frozenset[str] | tuple[str, ...]  # asked of each node: of many it takes a set to find one


@dataclasses.dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: str
    values: Values

    def holds(self, value: str | None) -> bool:
        """Whether it holds for the label's value, None where there is no such label."""
        judge = _OPERATORS.get(self.operator)
        return judge is not None and judge[1](value, self.values)

    @property
    def is_valid(self) -> bool:
        """Whether the operator is known and the values are such as it takes."""
        judge = _OPERATORS.get(self.operator)
        return (
            judge is not None and judge[0](self.values) and all(_LABEL_VALUE.fullmatch(value) for value in self.values)
        )


# operator -> (whether it takes these values, whether it holds)
_OPERATORS: Mapping[str, tuple[Callable[[Values], bool], Callable[[str | None, Values], bool]]] = {
    "In": (bool, lambda value, wanted: value is not None and value in wanted),
    "NotIn": (bool, lambda value, wanted: value is None or value not in wanted),
    "Exists": (lambda wanted: not wanted, lambda value, _: value is not None),
    "DoesNotExist": (lambda wanted: not wanted, lambda value, _: value is None),
    "Gt": (lambda wanted: _are_number(wanted), lambda value, wanted: _compare(value, wanted) > 0),
    "Lt": (lambda wanted: _are_number(wanted), lambda value, wanted: _compare(value, wanted) < 0),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Selector:
    """All requirements must hold. `is_void`: nothing matches."""

    requirements: tuple[Requirement, ...] = ()
    is_void: bool = False

    @property
    def matches_all(self) -> bool:
        """Whether there is no condition at all."""
        return not self.is_void and not self.requirements

    def matches(self, labels: Labels) -> bool:
        """Whether something with these labels is selected."""
        return not self.is_void and all(
            requirement.holds(labels.get(requirement.key)) for requirement in self.requirements
        )

    def with_requirements(self, *more: Requirement) -> Selector:
        """This selector with further requirements."""
        return Selector((*self.requirements, *more), self.is_void)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeTerm:
    """One of the alternatives of a node affinity: conditions on labels and on the name."""

    labels: Selector
    names: Selector

    def matches(self, name: str, labels: Labels) -> bool:
        """Whether the node is meant."""
        return self.labels.matches(labels) and self.names.matches({NAME_FIELD: name})


def of_labels(declared: Mapping[str, Any] | None) -> Selector:
    """A `LabelSelector`: none at all selects nothing, an empty one everything."""
    if declared is None:
        return Selector(is_void=True)
    exact = [Requirement(key, "In", (str(value),)) for key, value in (declared.get("matchLabels") or {}).items()]
    return _selector([*exact, *_requirements(declared.get("matchExpressions"))])


def of_nodes(declared: Mapping[str, Any] | None) -> tuple[NodeTerm, ...] | None:
    """A `NodeSelector`: one of the terms must match; empty ones match nothing. None where none is declared."""
    if declared is None:
        return None
    return tuple(
        NodeTerm(_selector(_requirements(term.get("matchExpressions"))), _names(term.get("matchFields")))
        for term in declared.get("nodeSelectorTerms") or []
        if term.get("matchExpressions") or term.get("matchFields")
    )


def of_topologies(declared: Iterable[Mapping[str, Any]] | None) -> tuple[NodeTerm, ...] | None:
    """The `allowedTopologies` of a StorageClass: one of the terms must match. None where any node will do."""
    if not declared:
        return None
    return tuple(
        NodeTerm(
            _selector(
                [
                    Requirement(str(expression.get("key", "")), "In", _values(expression.get("values")))
                    for expression in term.get("matchLabelExpressions") or ()
                ]
            ),
            _names(None),
        )
        for term in declared
    )


def _requirements(declared: Iterable[Mapping[str, Any]] | None) -> list[Requirement]:
    return [
        Requirement(
            str(expression.get("key", "")), str(expression.get("operator", "")), _values(expression.get("values"))
        )
        for expression in declared or ()
    ]


def _selector(requirements: list[Requirement]) -> Selector:
    return Selector(tuple(requirements), is_void=not all(requirement.is_valid for requirement in requirements))


def _names(declared: Iterable[Mapping[str, Any]] | None) -> Selector:
    """Names are not label values, and one at a time is all that is allowed."""
    requirements = _requirements(declared)
    sound = all(
        requirement.key == NAME_FIELD and requirement.operator in {"In", "NotIn"} and len(requirement.values) == 1
        for requirement in requirements
    )
    return Selector(tuple(requirements), is_void=not sound)


def _values(declared: Iterable[Any] | None) -> Values:
    values = tuple(map(str, declared or ()))
    return frozenset(values) if len(values) > _MANY else values


def _are_number(values: Values) -> bool:
    return len(values) == 1 and number(*values) is not None


def _compare(value: str | None, wanted: Values) -> int:
    """Sign of the difference; 0 where there is no number to compare."""
    actual, bound = number(value or ""), number(*wanted)
    return 0 if actual is None or bound is None else (actual > bound) - (actual < bound)


@functools.lru_cache(maxsize=4096)
def number(text: str) -> int | None:
    """The number that a label's value is, to those who compare it; None for what is none."""
    if not _WHOLE.fullmatch(text):
        return None
    parsed = int(text)
    return parsed if -_MAX <= parsed < _MAX else None
