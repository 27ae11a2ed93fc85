"""Finding: one result of a rule. Rule: a precondition with the reason for it."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Iterable, Sequence, Sized

from gpushare import quantity
from gpushare.preflight.facts_of_cluster import ClusterFacts


class Severity(enum.IntEnum):
    """The level of a finding; `UNKNOWN` could not be determined, and may be any of them."""

    OK = 0
    INFO = 1
    UNKNOWN = 2
    WARNING = 3
    BLOCKING = 4

    @property
    def word(self) -> str:
        """The level as printed."""
        return self.name.capitalize()


class RulePhase(enum.Enum):
    """When a rule runs: before an installation, after one, while any part of it exists, or always."""

    BEFORE = "before"
    AFTER = "after"
    INSTALLED = "installed"
    ANY = "any"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """`found`: the situation, in a sentence. `subjects`: the affected objects, as `node/NAME`; none: the whole cluster.

    remedy: what to do about it, and `commands` that do it, to be pasted into a shell. A name in capitals is a
    placeholder.
    """

    severity: Severity
    found: str
    subjects: tuple[str, ...] = ()
    remedy: str = ""
    commands: tuple[str, ...] = ()
    rule: str = ""
    why: str = ""


Judge = Callable[[ClusterFacts], Iterable[Finding]]


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A precondition. `wanted`: what should be true, in a sentence; `why`: what happens otherwise."""

    id: str
    wanted: str
    why: str
    judge: Judge
    phase: RulePhase = RulePhase.ANY


def rule(identity: str, wanted: str, why: str, phase: RulePhase = RulePhase.ANY) -> Callable[[Judge], Rule]:
    """Return a decorator that makes a rule of its function."""
    return lambda judge: Rule(identity, wanted, why, judge, phase)


def severity_for(concerned: Sequence[object], all_of_them: Sequence[object]) -> Severity:
    """Return the severity for nodes that cannot take part: blocking only if no node is left."""
    return Severity.BLOCKING if len(concerned) >= len(all_of_them) else Severity.WARNING


# Names that the API server accepts; the key of a taint or label also has a prefix and capitals.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,316}")
_NAMED = 8  # more names are no help in a command


def names(all_of_them: Sequence[str], placeholder: str) -> str:
    """Return names for a command line, or the placeholder if there are many, or one that a shell might execute."""
    plain = all(_NAME.fullmatch(name) for name in all_of_them)
    return " ".join(all_of_them) if plain and len(all_of_them) <= _NAMED else placeholder


def counted(concerned: Sized, noun: str = "node") -> str:
    """Return `1 node`, `3 nodes`."""
    return quantity.counted(len(concerned), noun)


def listed(all_of_them: Sequence[str], most: int = _NAMED) -> str:
    """Return names for a sentence: the first ones, and how many more."""
    rest = len(all_of_them) - most
    return ", ".join(all_of_them[:most]) + (f" and {rest} more" if rest > 0 else "")
