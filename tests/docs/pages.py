"""The documents on disk: pages, code blocks, quoted text and tables."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MANUAL = ROOT / "docs" / "cli"  # generated from the code; tests/kubectl_gpushare compares them
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(MANUAL.glob("*.md")),
    *sorted((ROOT / "interposer").glob("*.md")),
    *sorted((ROOT / "simgpu").glob("*.md")),
    *sorted((ROOT / "bench" / "gpu").glob("*.md")),
)
_BLOCK = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"`([^`\n]+)`")
_COMMENT = re.compile(r"(^|\s+)#\s.*$")
_HIDDEN = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    line: the line number of its first row of text.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name(page: Path) -> str:
    """Return the name that links use for a page."""
    return page.relative_to(ROOT).as_posix()


def blocks() -> list[Block]:
    """Yield every fenced block of every page."""
    fenced_blocks = []
    for page in PAGES:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start(3)) + 1
            fenced_blocks.append(Block(name(page), line, match.group(2), textwrap.dedent(match.group(3))))
    return fenced_blocks


def prose(page: Path) -> str:
    """Return the text without blocks and comments, each paragraph on one line, since quotations may be wrapped."""
    return joined(page.read_text())


def joined(text: str) -> str:
    """Join the paragraphs of a page's text likewise."""
    shown = _HIDDEN.sub("", _BLOCK.sub("\n", text))
    return re.sub(r"(?<=[^\n|])\n *(?=\S)(?![|*#>-]|\d+\. )", " ", shown)


def blanked(text: str) -> str:
    """Replace blocks and comments by empty lines, so that all other lines keep their numbers."""
    return _HIDDEN.sub(_newlines, _BLOCK.sub(_newlines, text))


def _newlines(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")


def quoted(page: Path) -> list[str]:
    """Return the text between backticks, without blocks."""
    return _QUOTED.findall(prose(page))


def lines(block: Block) -> Iterator[str]:
    """Return the commands of a shell block, with continued lines joined, without prompts and comments."""
    for line in block.text.replace("\\\n", " ").splitlines():
        command = _COMMENT.sub("", line).removeprefix("# ").removeprefix("$ ").strip()
        if command:
            yield command


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """Return the table rows below a heading: the names quoted in the first cell, and the other cells."""
    text = "\n" + _BLOCK.sub("", (ROOT / page).read_text())
    level = heading.partition(" ")[0]
    assert text.count(f"\n{heading}\n") == 1, f"{page} has no heading {heading}"
    part = text.partition(f"\n{heading}\n")[2]
    part = re.split(rf"^#{{1,{len(level)}}} ", part, maxsplit=1, flags=re.MULTILINE)[0]
    table: dict[str, list[str]] = {}
    for line in part.splitlines():
        if not line.startswith("| `"):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for key in _QUOTED.findall(cells[0]):
            assert key not in table, f"{page}: {key} is there twice"
            table[key] = cells[1:]
    return table
