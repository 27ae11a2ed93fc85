"""Finding: what a rule says of a cluster; a rule is a question with the reason why it is asked."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Iterable, Sequence, Sized

from gpushare.preflight.facts_of_cluster import ClusterFacts


class Severity(enum.IntEnum):
    """How bad it is; `UNKNOWN` is what could not be told, and may be anything."""

    OK = 0
    INFO = 1
    UNKNOWN = 2
    WARNING = 3
    BLOCKING = 4

    @property
    def word(self) -> str:
        """The level as it is printed."""
        return self.name.capitalize()


class RulePhase(enum.Enum):
    """When a rule is asked: before an installation, after one, after one that has left anything there, or always."""

    BEFORE = "before"
    AFTER = "after"
    INSTALLED = "installed"
    ANY = "any"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """`found`: what there is, in a sentence. `subjects`: whom it concerns, as `node/NAME`; none: the whole cluster.

    remedy: what to do about it, and `commands` that do it, to be pasted into a shell. A name in capitals is to be
    replaced.
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
    """A precondition. `wanted`: what should be, in a sentence; `why`: what becomes of it otherwise."""

    id: str
    wanted: str
    why: str
    judge: Judge
    phase: RulePhase = RulePhase.ANY


def severity_for(concerned: Sequence[object], all_of_them: Sequence[object]) -> Severity:
    """Of nodes that cannot take part: it stops everything only if no node is left."""
    return Severity.BLOCKING if len(concerned) >= len(all_of_them) else Severity.WARNING


# As the API server has them; the key of a taint or label has a prefix and capitals, too.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,316}")
_NAMED = 8  # more names than this are no help in a command


def names(all_of_them: Sequence[str], placeholder: str) -> str:
    """Names for a command line: all of them, or the placeholder where there are many or one is no name of an object.

    A saved object may be called anything, and a shell would obey it.
    """
    plain = all(_NAME.fullmatch(name) for name in all_of_them)
    return " ".join(all_of_them) if plain and len(all_of_them) <= _NAMED else placeholder


def counted(concerned: Sized, noun: str = "node") -> str:
    """`1 node`, `3 nodes`."""
    number = len(concerned)
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(all_of_them: Sequence[str], most: int = _NAMED) -> str:
    """Names for a sentence: the first ones, and how many more."""
    rest = len(all_of_them) - most
    return ", ".join(all_of_them[:most]) + (f" and {rest} more" if rest > 0 else "")
