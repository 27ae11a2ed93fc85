"""Result pages that are older than the code they measure.

A page names its benchmarks as `bench/NAME.py` or `bench.NAME`. A benchmark measures the files of this repository that
it imports, directly or through others. Ages are those of commits. Prints one JSON object for each page.

Run: python bench/outdated_results.py
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r"\bbench[/.](\w+)")


def committed() -> dict[str, int]:
    """Return the time of each file's last commit, in seconds."""
    command = ["git", "-C", str(ROOT), "log", "--format=@%ct", "--name-only", "--no-renames"]
    at: dict[str, int] = {}
    when = 0
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        if line.startswith("@"):
            when = int(line[1:])
        elif line:
            at.setdefault(line, when)
    return at


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, with the names taken from them, which may be modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(module: str) -> Iterator[Path]:
    """Yield the module's file, if it is one of this repository."""
    for base in (ROOT, ROOT / "bench"):
        stem = base.joinpath(*module.split("."))
        for path in (stem.with_suffix(".py"), stem / "__init__.py", stem / "__main__.py"):
            if path.is_file():
                yield path


def measured(modules: Iterable[str]) -> set[Path]:
    """Return the files behind these modules and everything that they import."""
    found: set[Path] = set()
    waiting = [path for module in modules for path in files_of(module)]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [file for module in imported(path) for file in files_of(module)]
    return found


def main() -> None:
    """Print the pages."""
    at = committed()
    for page in sorted(ROOT.glob("bench/results/*.md")):
        name = str(page.relative_to(ROOT))
        modules = sorted({f"bench.{found}" for found in NAMED.findall(page.read_text())} - {"bench.results"})
        files = {str(path.relative_to(ROOT)) for path in measured(modules)}
        newer = sorted((file for file in files if at.get(file, 0) > at.get(name, 0)), key=lambda file: -at[file])
        row = {"page": name, "is_outdated": bool(newer), "measures": len(files), "newer": len(newer)}
        print(json.dumps(row | {"newest": newer[0] if newer else None}))


if __name__ == "__main__":
    main()
