"""Page: the output of `describe` as values: fields, sections, pictures of GPUs, tables."""

from __future__ import annotations

import dataclasses
import string

from kubectl_gpushare.output.table import Table


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """`Key:  value`; several values stand below each other."""

    key: str
    values: tuple[str, ...]
    style: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """A bar of what tenants hold: `(position of the tenant, amount)`, in the same unit as `total`."""

    label: str
    parts: tuple[tuple[int, int], ...]
    total: int
    caption: str
    over: bool = False  # more is held than there is


@dataclasses.dataclass(frozen=True, slots=True)
class Commands:
    """Lines to paste into a shell: never wrapped."""

    lines: tuple[str, ...]


Block = str | Picture | Table | Commands


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """`Title:` and blocks below it, indented."""

    title: str
    blocks: tuple[Block, ...]
    style: str = ""


Page = tuple[Field | Section, ...]


def field(key: str, *values: str, style: str = "") -> tuple[Field, ...]:
    """Return A field; nothing if all values are empty."""
    said = tuple(value for value in values if value)
    return (Field(key, said, style),) if said else ()


def letter(position: int) -> str:
    """Return the letter of a tenant in pictures and tables."""
    letters = string.ascii_letters
    return letters[position] if position < len(letters) else "#"
