"""The palette: styles by what they mean, in the 16 colours that every terminal's own theme defines."""

from __future__ import annotations

from collections.abc import Mapping

PALETTE: Mapping[str, str] = {
    "good": "32",
    "warn": "33",
    "bad": "1;31",
    "dim": "90",
    "bold": "1",
    "compute": "32",
    "memory": "36",
}

# Colours of a GPU's tenants: the text on them is black, so only the lighter half of the 16.
TENANTS = ("42", "46", "43", "45", "44", "102", "106", "103", "105", "104")


def paint(text: str, style: str, *, on: bool) -> str:
    """Return `text` in a style of the palette; unchanged if `style` is empty or colours are off."""
    return f"\x1b[{PALETTE[style]}m{text}\x1b[0m" if on and style and text else text


def tenant(text: str, position: int, *, on: bool) -> str:
    """Return `text` on the colour of a GPU's tenant."""
    return f"\x1b[30;{TENANTS[position % len(TENANTS)]}m{text}\x1b[0m" if on and text else text
