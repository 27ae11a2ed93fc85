"""Measures how comments, docstrings and printed sentences read, by package, as `prose` measures pages.

Ceilings in `prose_ceilings.json` only go down: a package that is better than its ceiling gets a lower one. To write
that file again, run from the root

    .venv/bin/python -m tests.docs.code_prose > tests/docs/prose_ceilings.json
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.docs import pages, prose

# Constructions per 1,000 words that need no ceiling. Printed sentences are measured separately.
PACKAGES: Final[Mapping[str, float]] = {
    "bench": 0.5,
    "config": 0.5,
    "deviceplugin": 0.7,
    "gpushare": 1.0,
    "interposer": 0.4,
    "kubectl_gpushare": 0.5,
    "lab": 0.8,
    "simgpu": 0.8,
    "tests": 0.6,
    "webhook": 0.5,
}
CASES: Final = (
    *((package, False) for package in PACKAGES),
    *((package, True) for package in PACKAGES if package not in {"interposer", "simgpu", "tests"}),
)
MAX_ODD_DOCSTRINGS: Final = 2.0  # percent

_ODD_OPENING: Final = re.compile(
    r"^(?:Who|Whose|Whoever|What|Whatever|It|They|These|Those|One|Nobody|Of|Its|Their|Since|By|From now)\b"
)
_C_COMMENT: Final = re.compile(
    r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|/\*(.*?)\*/|((?:^[ \t]*//.*\n)+|//.*)", re.S | re.M
)
# Strings too, which may contain the character; matching them all takes a tenth of a tokenizer's time.
_COMMENT: Final = re.compile(
    r"\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|(#.*?)$", re.S | re.M
)
_DIRECTIVE: Final = re.compile(r"noqa|type:|clang-format|NOLINT|mypy:|fmt:")
_BLOCKS: Final = ("body", "orelse", "handlers", "finalbody", "cases")
_DEFINITIONS: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclasses.dataclass(frozen=True, slots=True)
class CodeMeasure:
    """Constructions per 1,000 words, and docstrings with an odd opening in percent; with the worst sentences."""

    constructions: float
    odd_docstrings: float
    sentences: tuple[str, ...]


def measure(package: str, *, printed: bool = False) -> CodeMeasure:
    """Measure a package: its docstrings and comments, or the sentences that it prints."""
    texts, docstrings, odd = [], 0, 0
    for path in _files(package):
        source = path.read_text()
        if path.suffix != ".py":
            texts += list(c_comments(source)) if not printed else []
        elif printed:
            texts += list(strings(source))
        else:
            of_functions = list(python_docstrings(source))
            texts += [*of_functions, *python_comments(source)]
            docstrings += len(of_functions)
            odd += sum(_ODD_OPENING.match(text) is not None for text in of_functions)
    found = [prose.measure(f"{text}\n") for text in texts]
    words = sum(one.words for one in found)
    sentences = tuple(itertools.chain.from_iterable(one.sentences for one in found))
    return CodeMeasure(1000 * len(sentences) / max(words, 1), 100 * odd / max(docstrings, 1), sentences)


def name(package: str, *, printed: bool) -> str:
    """Return a package's name in the file of ceilings."""
    return f"{package} (printed)" if printed else package


def ceiling(package: str, measured: CodeMeasure) -> dict[str, float]:
    """Return the ceiling that the package needs now; empty at the aim."""
    aims = {"constructions": PACKAGES[package], "odd_docstrings": MAX_ODD_DOCSTRINGS}
    needed = {kind: getattr(measured, kind) for kind in aims}
    return {kind: round(needed[kind] + 0.05, 1) for kind, aim in aims.items() if needed[kind] > aim}


def python_docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a module."""
    nodes: list[ast.AST] = [ast.parse(source)]
    for node in nodes:  # statements alone, which are a tenth of all nodes
        nodes += [inner for part in _BLOCKS for inner in getattr(node, part, ())]
        if isinstance(node, (ast.Module, *_DEFINITIONS)) and (text := ast.get_docstring(node)):
            yield text


def python_comments(source: str) -> Iterator[str]:
    """Yield the comments of a module; consecutive lines are one."""
    if "#" not in source:
        return
    block: list[str] = []
    end = -1  # of the last comment
    for found in _COMMENT.finditer(source):
        if found[1] is None or _DIRECTIVE.search(found[1]):
            continue
        between = source[end : found.start()]
        if block and (between.count("\n") != 1 or between.strip()):
            yield " ".join(block)
            block = []
        block.append(found[1].lstrip("#").strip())
        end = found.end()
    yield " ".join(block)


def c_comments(source: str) -> Iterator[str]:
    """Yield the comments of a C file; consecutive lines are one."""
    for found in _C_COMMENT.finditer(source):
        if text := found[1] or found[2]:
            yield " ".join(re.sub(r"^\s*(?:\*+|//+) ?", "", line).strip() for line in text.splitlines())


def strings(source: str) -> Iterator[str]:
    """Yield the literals of five words or more that are not docstrings; `X` stands for inserted values."""
    tree = ast.parse(source)
    skipped = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, *_DEFINITIONS)) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            skipped.update(map(id, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            text = node.value
        else:
            continue
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= 5:
            yield text


def _files(package: str) -> list[Path]:
    command = ["git", "ls-files", *(f"{package}/*.{ending}" for ending in ("py", "c", "h", "def"))]
    listed = subprocess.run(command, cwd=pages.ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [pages.ROOT / name for name in listed if "_pb2" not in name and (pages.ROOT / name).is_file()]


def main() -> None:
    """Print the ceilings that pages and packages need now, and a table of the packages to stderr."""
    needed: dict[str, Mapping[str, float]] = {
        pages.name(page): prose.ceiling(prose.measure(page.read_text())) for page in prose.PAGES
    }
    for package, printed in CASES:
        measured = measure(package, printed=printed)
        needed[name(package, printed=printed)] = ceiling(package, measured)
        sys.stderr.write(
            f"{name(package, printed=printed):28} {measured.constructions:5.1f} constructions per 1,000 words, "
            f"{measured.odd_docstrings:4.1f} % odd docstrings\n"
        )
    sys.stdout.write(f"{json.dumps({key: value for key, value in sorted(needed.items()) if value}, indent=2)}\n")


if __name__ == "__main__":
    main()
