"""Result pages that are older than the code they measure.

A page names its benchmarks as `bench/NAME.py` or `bench.NAME`. A benchmark measures the Python files of this repository
that it imports, directly or through others. A file is newer than a page if its code has changed since the last commit
that changed the page's tables; comments and docstrings do not count. Prints one JSON object for each page.

Run: python bench/outdated_results.py
"""

from __future__ import annotations

import ast
import functools
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r"\bbench[/.](\w+)")


def git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout


def sources(commit: str) -> dict[str, bytes]:
    """Return the Python files of a commit, by path."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "--", "*.py"))) as archive:
        files = ((entry.name, archive.extractfile(entry)) for entry in archive)
        return {name: file.read() for name, file in files if file}


@functools.cache
def code(source: bytes) -> str:
    """Return a file's syntax tree without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
    return ast.dump(tree)


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
    for page in sorted(ROOT.glob("bench/results/*.md")):
        name = str(page.relative_to(ROOT))
        before = sources(git("log", "-1", "-G^[|]", "--format=%H", "--", name).decode().strip())
        modules = sorted({f"bench.{found}" for found in NAMED.findall(page.read_text())} - {"bench.results"})
        files = {str(path.relative_to(ROOT)): path.read_bytes() for path in measured(modules)}
        newer = sorted(file for file, now in files.items() if file not in before or code(now) != code(before[file]))
        print(json.dumps({"page": name, "is_outdated": bool(newer), "measures": len(files), "newer": newer[:5]}))


if __name__ == "__main__":
    main()
