"""Everything the programs can print: the texts in their sources, with a gap for each value."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpushare import contract
from gpushare.object_parsers import read_yaml
from tests.docs.pages import ROOT

GAP: Final = "\0"
_PACKAGES: Final = ("gpushare", "webhook", "deviceplugin", "kubectl_gpushare")
_FIELD: Final = re.compile(r"\{[^{}]*\}")  # for str.format
_LITERAL: Final = r'"((?:[^"\\\n]|\\.)*)"'
_LITERALS: Final = re.compile(rf"{_LITERAL}(?:\s*(?:\w+\s*)?{_LITERAL})*")  # a macro between two texts is a value
_CONVERSION: Final = re.compile(r"%[-.*\d]*[a-z]+")


@functools.cache
def texts() -> tuple[str, ...]:
    """Return all texts."""
    literals: list[str] = []
    for path in (source for package in _PACKAGES for source in sorted((ROOT / package).rglob("*.py"))):
        literals += _python(ast.parse(path.read_text()))
    for path in sorted((ROOT / "interposer").rglob("*.c")):
        literals += _c(path.read_text())
    for path in sorted((ROOT / "config" / "base" / "policy").glob("*.yaml")):
        literals += _policy(path)
    return tuple(text for text in literals if re.search(r"[a-z]{2}", text))


def prints(sentence: str) -> bool:
    """Whether some program prints it; `…` in it stands for anything. A match that spans several texts must be long."""
    parts = [part.strip() for part in sentence.split("…") if part.strip()]
    return any(_has_in_order(text, parts) for text in texts()) or all(
        len(part) > 12 and any(part in text for text in texts()) for part in parts
    )


def _has_in_order(text: str, parts: list[str]) -> bool:
    place = 0
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return bool(parts)


def _python(tree: ast.Module) -> Iterator[str]:
    inside = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(map(_part, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside | docstrings:
            yield _FIELD.sub(GAP, node.value)


def _part(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    match value:
        case ast.FormattedValue(value=ast.Attribute(value=ast.Name(id="contract"), attr=name)):
            return str(getattr(contract, name))
    return GAP


def _c(source: str) -> Iterator[str]:
    for match in _LITERALS.finditer(source):
        joined = re.sub(r'"\s*"', "", match.group())
        yield _CONVERSION.sub(GAP, re.sub(r'"\s*\w+\s*"', GAP, joined).strip('"')).replace('\\"', '"')


def _policy(path: Path) -> Iterator[str]:
    for document in read_yaml(path.read_text()):
        rules: list[Any] = (document.get("spec") or {}).get("validations") or []
        for rule in rules:
            yield str(rule.get("messageExpression") or rule.get("message") or "").replace('\\"', '"')
