"""Makes foreign text safe to print: names and messages may contain characters that a terminal or an editor obeys.

These are the characters that Unicode calls not printable: controls (C0, DEL and C1), marks that reverse the direction
of text, separators of lines and paragraphs, lone surrogates, and invisible characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable


def replaced(text: str) -> str:
    """Return `text` with � for each character that is not printable."""
    return text if text.isprintable() else text.translate(dict.fromkeys(_unprintable(text), "�"))


def escaped(document: str) -> str:
    """Return JSON with each unprintable character escaped: its meaning stays, and so do its own newlines."""
    if _is_plain(document):
        return document  # JSON escapes characters below the space itself
    return document.translate(
        {code: json.dumps(chr(code))[1:-1] for code in _unprintable(document) if code != ord("\n")}
    )


def is_document(text: str) -> bool:
    """Whether `text` contains nothing unprintable except line ends."""
    return _is_plain(text) or text.replace("\n", "").isprintable()


def _is_plain(text: str) -> bool:
    """Whether the text is ASCII without DEL, which JSON does not escape."""
    return text.isascii() and "\x7f" not in text


def _unprintable(text: str) -> Iterable[int]:
    return {ord(character) for character in set(text) if not character.isprintable()}
