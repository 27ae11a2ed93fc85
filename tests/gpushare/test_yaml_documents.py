"""Untrusted YAML: it gives documents or one error, never a crash or unbounded work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpushare import errors
from gpushare.object_parsers import read_yaml

ROOT = Path(__file__).resolve().parents[2]
DEEP = {
    "lists": "[" * 100_000,
    "lists of lines": "- " * 100_000,
    "mappings": "{a: " * 100_000,
    "keys": "? " * 100_000,
    "by aliases": "\n".join(
        ["- &a0 x", *(f"- &a{step} {'[' * 90}*a{step - 1}{']' * 90}" for step in range(1, 100))]
    ),
}  # fmt: skip
# A list of ten aliases to a list of ten aliases to …
LAUGHS = "\n".join(["- &a0 x", *(f"- &a{step} [{', '.join([f'*a{step - 1}'] * 10)}]" for step in range(1, 20))])


def test_documents_are_read_one_at_a_time() -> None:
    documents = [{"a": [1, "b", None]}, "text", None, [{"c": 0.5}]]
    assert list(read_yaml(yaml.safe_dump_all(documents))) == documents
    assert list(read_yaml('\ufeff{"a": {"b": []}}')) == [{"a": {"b": []}}]
    assert list(read_yaml("")) == []


@pytest.mark.parametrize("kind", sorted(DEEP))
def test_deep_nesting_gives_one_error(kind: str) -> None:
    # In a separate process, because deep nesting would crash it.
    program = (
        "import sys\nfrom gpushare import errors, object_parsers\n"
        "try: list(object_parsers.read_yaml(sys.stdin.read()))\nexcept errors.CodecError as error: print(error)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, input=DEEP[kind], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "it is nested too deeply: at most 100 levels are allowed\n")


def test_nesting_as_deep_as_kubernetes_objects_is_accepted() -> None:
    assert list(read_yaml("[" * 99 + "x" + "]" * 99))


def test_aliases_are_resolved() -> None:
    assert list(read_yaml("a: &a [1, 2]\nb: [*a, *a]")) == [{"a": [1, 2], "b": [[1, 2], [1, 2]]}]
    repeated = "a: &a [" + "x, " * 10_000 + "]\nb: [" + "*a, " * 9 + "]"
    assert len(next(read_yaml(repeated))["b"]) == 9


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LAUGHS, "its aliases expand to more than 100000 values"),
        ("items: &a [*a]", "an alias refers to a value that contains it"),
        ("a: [", "did not find expected node content"),
        ("a: 1\nb: 2026-13-45", "a value does not have the type that its notation implies: month must be in 1..12"),
        ("!!timestamp x", "a value does not have the type"),
        ("!!float ''", "a value does not have the type"),
        ("!!bool perhaps", "a value does not have the type"),
        ("a: =", "could not determine a constructor"),
        ("a\0b", "control characters are not allowed"),
    ],
)
def test_invalid_yaml_gives_one_error(text: str, says: str) -> None:
    with pytest.raises(errors.CodecError) as raised:
        list(read_yaml(text))
    assert says in str(raised.value)
    assert str(raised.value).isprintable()
