"""Measures how pages read: constructions that native speakers do not use, and lines that are not wrapped.

Such text makes readers doubt the program, but single sentences look harmless in a review, so they are counted. A page
of more than 1,000 words may have one construction per 1,000 words, a shorter page one in all. Pages that have not
reached this aim have a ceiling in `prose_ceilings.json`. `code_prose` measures code in the same way.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.docs import pages

PAGES: Final = (
    *pages.PAGES,
    pages.ROOT / "charts" / "gpushare" / "README.md",
    *sorted((pages.ROOT / "tests").rglob("[!.]*.md")),
)
CEILINGS: Final = Path(__file__).with_name("prose_ceilings.json")
MAX_WIDTH: Final = 100
SHORT_PAGE_WORDS: Final = 1000

# A relative clause without a noun: "Who waits …" for "Pods that wait …".
_HEADLESS: Final = re.compile(
    r"^(?:Who|Whoever|Whom|Whose|What|Whatever|Whichever)\b(?!.*\?$)|[:;] (?:who|whose|what)\b"
)
# Persons instead of pods or processes, reports without a sender, and "of" instead of a possessive or a verb.
_PHRASES: Final = re.compile(
    r"\b(?:(?:no|some|any|every)body|whoever|whomever|whatever|whichever"
    r"|(?:is|are|was|were|be|been) (?:told|let)"
    r"|of (?:its|their|his|our) own|of (?:the )?others|com(?:e|es|ing) free"
    r"|in vain|be it|yet to|anew|for good"
    r"|(?:of|to|by|for|from|with|than|as|beside|and|or|that|where|but|on|in) who)\b",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z'-]*|\d+")
_CODE: Final = re.compile(r"`[^`]*`")
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MARK: Final = re.compile(r"^\s*(?:[-*+>]|\d+\.)\s+")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_CELL_END: Final = re.compile(r"(?<!\\)\|")


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """A page's sentences with odd constructions, one for each, and the numbers of its long lines."""

    words: int
    sentences: tuple[str, ...]
    long_lines: tuple[int, ...]

    @property
    def per_thousand_words(self) -> float:
        """The density of the constructions."""
        return 1000 * len(self.sentences) / max(self.words, 1)

    @property
    def reads_well(self) -> bool:
        """Whether the page needs no ceiling for its constructions."""
        return len(self.sentences) <= 1 or (self.words > SHORT_PAGE_WORDS and self.per_thousand_words <= 1.0)


def measure(text: str) -> Measure:
    """Measure a page."""
    found = list(_sentences(pages.joined(text)))
    hits = [sentence for sentence in found for _ in range(_constructions(sentence))]
    return Measure(sum(len(_WORD.findall(sentence)) for sentence in found), tuple(hits), tuple(_long_lines(text)))


def _constructions(sentence: str) -> int:
    return len(_HEADLESS.findall(sentence)) + len(_PHRASES.findall(sentence))


def _sentences(prose: str) -> Iterator[str]:
    for line in prose.splitlines():
        if line.startswith("#"):
            continue
        shown = _LINK.sub(r"\1", _CODE.sub("CODE", line)).replace("**", "")
        for cell in _CELL_END.split(shown.strip("|")) if line.startswith("|") else [shown]:
            yield from filter(None, map(str.strip, _SENTENCE_END.split(_MARK.sub("", cell))))


def _long_lines(text: str) -> Iterator[int]:
    """Yield their numbers. Tables, code, quotations, headings and the targets of links cannot be wrapped."""
    for number, line in enumerate(pages.blanked(text).splitlines(), start=1):
        if not line.startswith(("|", "#", ">")) and len(_LINK.sub(r"[\1]", line)) > MAX_WIDTH:
            yield number


def ceilings() -> Mapping[str, Mapping[str, float]]:
    """Read how many `constructions` and `long_lines` each page may still have; pages without an entry are at the aim."""
    read: dict[str, dict[str, float]] = json.loads(CEILINGS.read_text())
    return read


def ceiling(measured: Measure) -> dict[str, int]:
    """Return the ceiling that the page needs now; empty at the aim."""
    needed = {
        "constructions": 0 if measured.reads_well else len(measured.sentences),
        "long_lines": len(measured.long_lines),
    }
    return {kind: count for kind, count in needed.items() if count}


def problems(measured: Measure, allowed: Mapping[str, float]) -> list[str]:
    """Explain why a page is not accepted, one sentence per problem."""
    needed, found = ceiling(measured), []
    if needed.get("constructions", 0) > allowed.get("constructions", 0):
        found.append(
            f"{len(measured.sentences)} odd constructions, {measured.per_thousand_words:.1f} per 1,000 words: say who "
            f"does what, in plain order: {' | '.join(measured.sentences)}"
        )
    if needed.get("long_lines", 0) > allowed.get("long_lines", 0):
        found.append(f"lines of more than {MAX_WIDTH} characters: wrap {', '.join(map(str, measured.long_lines))}")
    if any(needed.get(kind, 0) < count for kind, count in allowed.items()):
        found.append(
            f"better than its ceiling, {dict(allowed)}: write {CEILINGS.name} again, as in {Path(__file__).name}"
        )
    return found
