"""Label and node selectors, parsed once and matched often.

As in the scheduler, an invalid requirement (`Gt` with a word, `In` without values, an unknown operator, an impossible
label value) matches nothing and voids its whole term.
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
Values = frozenset[str] | tuple[str, ...]  # many values are a set, for fast lookups


@dataclasses.dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: str
    values: Values

    def holds(self, value: str | None) -> bool:
        """Whether a label with this value meets the requirement; None: there is no such label."""
        rule = _OPERATORS.get(self.operator)
        return rule is not None and rule[1](value, self.values)

    @property
    def is_valid(self) -> bool:
        """Whether the operator is known and accepts these values."""
        rule = _OPERATORS.get(self.operator)
        return rule is not None and rule[0](self.values) and all(_LABEL_VALUE.fullmatch(value) for value in self.values)


# operator -> (whether the values are valid, whether the requirement holds)
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
    """Requirements that must all hold. `is_void`: it matches nothing."""

    requirements: tuple[Requirement, ...] = ()
    is_void: bool = False

    @property
    def matches_all(self) -> bool:
        """Whether there is no requirement at all."""
        return not self.is_void and not self.requirements

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels is selected."""
        return not self.is_void and all(each.holds(labels.get(each.key)) for each in self.requirements)

    def with_requirements(self, *more: Requirement) -> Selector:
        """Return this selector with further requirements."""
        return Selector((*self.requirements, *more), self.is_void)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeTerm:
    """One term of a node affinity: conditions on labels and on the node's name."""

    labels: Selector
    names: Selector

    def matches(self, name: str, labels: Labels) -> bool:
        """Whether the term selects the node."""
        return self.labels.matches(labels) and self.names.matches({NAME_FIELD: name})


def of_labels(declared: Mapping[str, Any] | None) -> Selector:
    """Parse a `LabelSelector`: None selects nothing, an empty one everything."""
    if declared is None:
        return Selector(is_void=True)
    exact = [Requirement(key, "In", (str(value),)) for key, value in (declared.get("matchLabels") or {}).items()]
    return _selector([*exact, *_requirements(declared.get("matchExpressions"))])


def of_nodes(declared: Mapping[str, Any] | None) -> tuple[NodeTerm, ...] | None:
    """Parse a `NodeSelector`: any term may match, and empty terms match nothing. None if there is none."""
    if declared is None:
        return None
    return tuple(
        NodeTerm(_selector(_requirements(term.get("matchExpressions"))), _names(term.get("matchFields")))
        for term in declared.get("nodeSelectorTerms") or []
        if term.get("matchExpressions") or term.get("matchFields")
    )


def of_topologies(declared: Iterable[Mapping[str, Any]] | None) -> tuple[NodeTerm, ...] | None:
    """Parse the `allowedTopologies` of a StorageClass: any term may match. None if every node is allowed."""
    if not declared:
        return None
    listed = ([{**entry, "operator": "In"} for entry in term.get("matchLabelExpressions") or ()] for term in declared)
    return tuple(NodeTerm(_selector(_requirements(expressions)), _names(None)) for expressions in listed)


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
    """Parse `matchFields`: names are not label values, and each requirement takes exactly one."""
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
    """Return the sign of the difference; 0 if there is no number."""
    actual, bound = number(value or ""), number(*wanted)
    return 0 if actual is None or bound is None else (actual > bound) - (actual < bound)


@functools.lru_cache(maxsize=4096)
def number(text: str) -> int | None:
    """Return the integer in a label value, or None."""
    if not _WHOLE.fullmatch(text):
        return None
    parsed = int(text)
    return parsed if -_MAX <= parsed < _MAX else None
