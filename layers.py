"""Checks the layers of the C code, as import-linter checks those of the Python code. `make check` runs it.

A file uses another one if it includes its header, or if its object needs a symbol that the other one's object defines,
with or without an include. So the objects must have been built. A module is a header with its source; sources for
different processors are one module.
"""

from __future__ import annotations

import dataclasses
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class SourceTree:
    """C sources in layers, with a folder for each layer, and the objects compiled from them."""

    sources: Path
    """The folder with the folders of the layers. Includes name files from here."""
    objects: Path
    """The folder with the objects, in the same folders as the sources."""
    layers: tuple[tuple[str, ...], ...]
    """Rows of layers, highest first. A layer may use those in lower rows, but none in its own row."""
    wings: frozenset[str] = frozenset()
    """Top folders that never use each other, whatever their rows."""
    filled_from_above: frozenset[str] = frozenset()
    """Constant tables that one layer reads and a higher layer defines."""

    @property
    def heights(self) -> Mapping[str, int]:
        """The height of each layer's row."""
        return {layer: -row for row, layers in enumerate(self.layers) for layer in layers}

    def may_see(self, user: str, used: str) -> bool:
        """Whether files in one layer may use files in another, or in the same one."""
        folders = {user.partition("/")[0], used.partition("/")[0]}
        if len(folders) == 2 and folders <= self.wings:
            return False
        return user == used or (used in self.heights and self.heights[used] < self.heights[user])

    def module(self, path: Path) -> str:
        """Name the module that a file belongs to, such as `compute/gate`."""
        return f"{path.parent.relative_to(self.sources)}/{_PROCESSOR.sub('', path.stem)}"


INTERPOSER: Final = SourceTree(
    sources=ROOT / "interposer",
    objects=ROOT / "build" / "interposer",
    layers=(("hooks",), ("session",), ("compute", "memory"), ("cuda",), ("share",), ("driver", "link"), ("base",)),
    filled_from_above=frozenset({"hook_rows"}),
)
SIMGPU: Final = SourceTree(
    sources=ROOT / "simgpu",
    objects=ROOT / "build" / "simgpu" / "objects",
    layers=(
        ("command", "nvml", "cuda/entry"),
        ("cuda/exec",),
        ("cuda/kernel", "cuda/copy"),
        ("cuda/stream",),
        ("cuda/graph", "cuda/context"),
        ("cuda/memory",),
        ("cuda/device",),
        ("cuda/abi", "time"),
        ("state",),
        ("image",),
    ),
    wings=frozenset({"command", "nvml", "cuda"}),
)
TREES: Final = (INTERPOSER, SIMGPU)

_INCLUDE: Final = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_PROCESSOR: Final = re.compile(r"_(x86_64|aarch64)$")
_SUFFIXES: Final = frozenset({".c", ".h", ".S", ".def"})


def findings(tree: SourceTree) -> list[str]:
    """Describe each violation of a tree's layers in a sentence, sorted.

    Raises:
        OSError: a file cannot be read, or an object is missing.
        subprocess.CalledProcessError: an object file is not one.
    """
    heights = tree.heights
    sources = sorted(path for path in tree.sources.rglob("*") if path.suffix in _SUFFIXES)
    strays = [path for path in sources if str(path.parent.relative_to(tree.sources)) not in heights]
    uses = dict(_uses(tree, [path for path in sources if path not in strays]))
    lines = [
        f"{path.relative_to(tree.sources)} is in no layer: put it into one of {', '.join(heights)}" for path in strays
    ]
    lines += [
        f"{user} must not see {used}: {why}"
        for (user, used), why in uses.items()
        if not tree.may_see(_layer(user), _layer(used))
    ]
    return sorted([*lines, *_circles(uses)])


def _layer(module: str) -> str:
    return module.rpartition("/")[0]


def _uses(tree: SourceTree, sources: Iterable[Path]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield pairs of modules, user first, with the include or symbol that shows the use."""
    symbols = dict(_symbols(tree, [path for path in sources if path.suffix in {".c", ".S"}]))
    defined = {name: tree.module(path) for path, kinds in symbols.items() for name in kinds if kinds[name] != "U"}
    for path in sources:
        user = tree.module(path)
        for included in _INCLUDE.findall(path.read_text()):
            if (used := tree.module(tree.sources / included)) != user:
                yield (user, used), f'{path.relative_to(tree.sources)} includes "{included}"'
        for name in sorted(set(symbols.get(path, ())) - tree.filled_from_above):
            if (used := defined.get(name, user)) != user:
                yield (user, used), f"{path.relative_to(tree.sources)} uses {name}"


def _symbols(tree: SourceTree, sources: Iterable[Path]) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield each source with the external names in its object and their kinds in nm's letters (U: undefined there).

    Sources for other processors have no object and are skipped.
    """
    built = {path: tree.objects / path.parent.relative_to(tree.sources) / f"{path.name}.o" for path in sources}
    here = {path: place for path, place in built.items() if place.exists() or not _PROCESSOR.search(path.stem)}
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
        if _layer(user) == _layer(used):
            graph.setdefault(user, set()).add(used)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield f"these use each other in a circle: {' -> '.join(reversed(error.args[1]))}"


if __name__ == "__main__":
    sys.exit("\n".join(f"{tree.sources.name}: {line}" for tree in TREES for line in findings(tree)) or 0)
