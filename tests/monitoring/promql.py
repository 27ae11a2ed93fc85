"""Finds the metrics and labels in a PromQL expression. It parses no more of the grammar than that needs."""

from __future__ import annotations

import re
from typing import Final

_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_RANGE: Final = re.compile(r"\[[^\]]*\]|\boffset\s+\w+")
_LISTED: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_MATCHED: Final = re.compile(r"\{([^}]*)\}")
_LABEL: Final = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
_NAME: Final = re.compile(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)\b(?!\s*\()")
_WORDS: Final = {
    "and",
    "or",
    "unless",
    "bool",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "offset",
}


def labels(expression: str) -> set[str]:
    """Return the labels that the expression matches or groups by."""
    text = _TEXT.sub("''", expression)
    matched = {name for part in _MATCHED.findall(text) for name in _LABEL.findall(part)}
    listed = {name.strip() for part in _LISTED.findall(text) for name in part.split(",")}
    return (matched | listed) - {""}


def metrics(expression: str) -> set[str]:
    """Return the metrics, including those recorded by rules."""
    text = _TEXT.sub("''", expression)
    for hidden in (_RANGE, _LISTED, _MATCHED):
        text = hidden.sub(" ", text)
    return {name for name in _NAME.findall(text) if name not in _WORDS}
