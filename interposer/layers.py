"""Holds the layers of the library, as import-linter holds those of the Python code. `make check` runs it.

Two things tell that a file uses another one: it includes its header, or its object needs a symbol that the other one's
object defines, whatever was included. So the objects must have been built. A module is a header with its source; where
each processor has a source of its own, they are one module.
"""

from __future__ import annotations

import graphlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent
OBJECTS: Final = ROOT.parent / "build" / "interposer"

# The highest first. Each sees only those below it: neither one above, nor one beside it in the same row.
LAYERS: Final = (("hooks",), ("session",), ("compute", "memory"), ("cuda",), ("share",), ("driver", "link"), ("base",))
# Constant tables that a layer reads and one above it fills.
FILLED_FROM_ABOVE: Final = frozenset({"hook_rows"})

_HEIGHTS: Final = {layer: -row for row, layers in enumerate(LAYERS) for layer in layers}
_INCLUDE: Final = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_MACHINE: Final = re.compile(r"_(x86_64|aarch64)$")
_SOURCES: Final = frozenset({".c", ".h", ".S", ".def"})


def findings(root: Path = ROOT, objects: Path = OBJECTS) -> list[str]:
    """A sentence for each place where the layers do not hold, sorted.

    Args:
        root: the folder of the sources, with a folder for each layer.
        objects: where their objects are, in the same folders.

    Raises:
        OSError: a file cannot be read, or an object is missing.
        subprocess.CalledProcessError: an object is none.
    """
    sources = sorted(path for path in root.rglob("*") if path.suffix in _SOURCES)
    strays = [path for path in sources if path.parent.name not in _HEIGHTS or path.parent.parent != root]
    uses = dict(_uses([path for path in sources if path not in strays], root, objects))
    lines = [f"{path.relative_to(root)} is in no layer: put it into one of {', '.join(_HEIGHTS)}" for path in strays]
    lines += [f"{user} must not see {used}: {why}" for (user, used), why in uses.items() if not _may_see(user, used)]
    return sorted([*lines, *_circles(uses)])


def _module(path: Path, root: Path) -> str:
    return f"{path.parent.relative_to(root)}/{_MACHINE.sub('', path.stem)}"


def _may_see(user: str, used: str) -> bool:
    layer, other = user.partition("/")[0], used.partition("/")[0]
    return layer == other or (other in _HEIGHTS and _HEIGHTS[other] < _HEIGHTS[layer])


def _uses(sources: Iterable[Path], root: Path, objects: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """Which module uses which other one, and by what."""
    symbols = dict(_symbols([path for path in sources if path.suffix in {".c", ".S"}], root, objects))
    defined = {name: _module(path, root) for path, kinds in symbols.items() for name in kinds if kinds[name] != "U"}
    for path in sources:
        user = _module(path, root)
        for included in _INCLUDE.findall(path.read_text()):
            if (used := _module(root / included, root)) != user:
                yield (user, used), f'{path.relative_to(root)} includes "{included}"'
        for name in sorted(set(symbols.get(path, ())) - FILLED_FROM_ABOVE):
            if (used := defined.get(name, user)) != user:
                yield (user, used), f"{path.relative_to(root)} uses {name}"


def _symbols(sources: Iterable[Path], root: Path, objects: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """The names that each source defines for others or needs of others (U); not of those of another processor."""
    built = {path: objects / path.parent.relative_to(root) / f"{path.name}.o" for path in sources}
    here = {path: place for path, place in built.items() if place.exists() or not _MACHINE.search(path.stem)}
    for place in here.values():
        if not place.exists():
            raise FileNotFoundError(f"{place} is missing: run `make build` first")
    command = ["nm", "--format=posix", "--extern-only", "--print-file-name", *map(str, here.values())]
    rows = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    for path, place in here.items():
        symbols = (row.removeprefix(f"{place}: ").split() for row in rows if row.startswith(f"{place}: "))
        yield path, {name: kind for name, kind, *_ in symbols}


def _circles(uses: Iterable[tuple[str, str]]) -> Iterator[str]:
    graph: dict[str, set[str]] = {}
    for user, used in uses:
        graph.setdefault(user, set()).add(used)
    try:
        graphlib.TopologicalSorter(_within_layers(graph)).prepare()
    except graphlib.CycleError as error:
        yield f"these use each other in a circle: {' -> '.join(reversed(error.args[1]))}"


def _within_layers(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    return {
        user: {used for used in others if used.partition("/")[0] == user.partition("/")[0]}
        for user, others in graph.items()
    }


if __name__ == "__main__":
    problems = findings()
    sys.exit("\n".join(problems) or 0)
