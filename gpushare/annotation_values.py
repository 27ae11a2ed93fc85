"""The syntaxes of annotation values, as parsers. Pure.

Each raises QuantityError with what is wrong with the value and how to write it, as the rest of a sentence that begins
with the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpushare import caps, errors, quantity
from gpushare.allocation import Memory

_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_CAPABILITY = re.compile(r"([0-9]{1,2})(?:\.([0-9]))?")


def memory(text: str) -> Memory:
    """Parse an amount of memory, or a percentage of the GPU's."""
    if not text.endswith("%"):
        return Memory(bytes=device_bytes(text))
    if not re.fullmatch(r"[0-9]{1,3}%", text) or int(text[:-1]) > 100:
        said = 'is not a percentage of the memory: write "0%" to "100%" in whole percent, or bytes such as "8Gi"'
        raise errors.QuantityError(said)
    return Memory(percent=int(text[:-1]))


def models(text: str) -> tuple[str, ...]:
    """Parse a list of patterns of model names."""
    patterns = names(text)
    longest = max(map(len, patterns))
    if longest > caps.NAME:
        raise errors.QuantityError(f"has a pattern of {longest} characters: write at most {caps.NAME}")
    special = sum(map(text.count, "?["))
    if special > caps.WILDCARDS:
        said = f'contains {special} "?" and "[": write at most {caps.WILDCARDS}; "*" is not limited'
        raise errors.QuantityError(said)
    return patterns


def device_bytes(text: str) -> int:
    """Parse an amount of device memory. A tiny amount is most likely meant in MiB and lacks its unit."""
    memory_bytes = quantity.parse_bytes(text)
    if 0 < memory_bytes < 1 << 20:
        raise errors.QuantityError('is less than 1Mi of memory: write the unit, such as "8Gi"')
    return memory_bytes


def count(text: str) -> int:
    """Parse a number of GPUs."""
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= caps.GPUS:
        raise errors.QuantityError(f"is not a count: write a whole number from 1 to {caps.GPUS}")
    return int(text)


def list_of(most: int) -> Callable[[str], tuple[str, ...]]:
    """Return the parser of a list with at most so many items."""

    def read(text: str) -> tuple[str, ...]:
        items = tuple(item.strip() for item in text.split(","))
        if not all(items):
            raise errors.QuantityError("has an empty item: write a list such as a,b")
        if len(items) > most:
            raise errors.QuantityError(f"is a list of {len(items)} items: write at most {most}")
        return items

    return read


names = list_of(caps.NAMES)


def label(text: str) -> str:
    """Check a label value."""
    if not _LABEL_VALUE.fullmatch(text):
        said = "write at most 63 letters, digits, '-', '_' or '.', a letter or digit at both ends"
        raise errors.QuantityError(f"is not a label value: {said}")
    return text


def capability(text: str) -> tuple[int, int]:
    """Parse a compute capability."""
    match = _CAPABILITY.fullmatch(text)
    if match is None:
        raise errors.QuantityError('is not a compute capability: write it as "8.0"')
    return int(match[1]), int(match[2] or 0)


def truth(text: str) -> bool:
    """Parse true or false."""
    if text not in {"true", "false"}:
        raise errors.QuantityError('is neither "true" nor "false"')
    return text == "true"


def one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    """Return the parser that accepts only these words."""

    def read(text: str) -> str:
        if text not in words:
            raise errors.QuantityError(f"is unknown: write one of {', '.join(words)}")
        return text

    return read
