"""Laws that every error message for invalid input obeys."""

from __future__ import annotations

MAX = 2000  # characters: it may quote several truncated values


def check_sentence(said: object) -> None:
    """Check that a message can be shown to a person."""
    text = str(said)
    assert text, "it says nothing"
    assert text.isprintable(), f"it has what is not printable: {text!r}"
    assert len(text) <= MAX, f"it has {len(text)} characters: {text[:200]}"
