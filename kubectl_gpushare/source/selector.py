"""Label selectors, for the objects of --from, which no API server filters.

Grammar: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from kubectl_gpushare import plugin_errors

Labels = Mapping[str, str]
Selector = Callable[[Labels], bool]

_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9._-]*"
_EQUALITY = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")
_COMMA = re.compile(r",(?![^()]*\))")  # not one inside parentheses


def parse(text: str) -> Selector:
    """A function that says whether labels match `text`; an empty text matches all. Raises `PluginError`."""
    terms = [_term(part.strip(), text) for part in _COMMA.split(text)] if text.strip() else []
    return lambda labels: all(term(labels) for term in terms)


def _term(part: str, text: str) -> Selector:
    if match := _EQUALITY.fullmatch(part):
        key, operator, value = match.groups()
        return lambda labels: (labels.get(key) == value) is (operator != "!=")
    if match := _SET.fullmatch(part):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        return lambda labels: (labels.get(key) in values) is (operator == "in")
    if match := _EXISTS.fullmatch(part):
        negated, key = match.groups()
        return lambda labels: (key in labels) is not bool(negated)
    raise plugin_errors.PluginError(
        f'"{text}" is not a label selector: write it as key=value, key!=value or "key in (a,b)"'
    )
