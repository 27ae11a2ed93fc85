"""Others' words where people and programs read them: names and messages may hold what a terminal or an editor obeys.

That is, what Unicode calls not printable: controls (C0, DEL and C1), the marks that turn the direction of text around,
separators of lines and paragraphs, halves of surrogates, and whatever is not seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable


def replaced(text: str) -> str:
    """Return `text` with � for each character that is not printable."""
    return text if text.isprintable() else text.translate(dict.fromkeys(_unprintable(text), "�"))


def escaped(document: str) -> str:
    """Return the JSON with an escape for each character that is not printable, which means the same. Newlines stay."""
    if _is_plain(document):
        return document  # what is below a space JSON escapes itself
    return document.translate(
        {code: json.dumps(chr(code))[1:-1] for code in _unprintable(document) if code != ord("\n")}
    )


def is_document(text: str) -> bool:
    """Whether `text`, in many lines, has nothing that is not printable but their ends."""
    return _is_plain(text) or text.replace("\n", "").isprintable()


def _is_plain(text: str) -> bool:
    """Whether it is ASCII without DEL, which JSON treats as a letter."""
    return text.isascii() and "\x7f" not in text


def _unprintable(text: str) -> Iterable[int]:
    return {ord(character) for character in set(text) if not character.isprintable()}
