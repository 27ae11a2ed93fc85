"""Adds pages to the site that are not below docs/, with links that work as in the repository.

It is a hook of MkDocs, which knows only one folder. Everything that a page links to is added: pages as pages, a folder
as a page with its contents, other files unchanged. So nothing is copied, and there is no list that could be out of
date.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# The first page is docs/index.md; and some disks take SECURITY.html and security.html for one file.
_RENAMED = {"README.md": "readme.md", "SECURITY.md": "security-policy.md"}
FIRST = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)\s#]+)(?=[)#])")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def place(path: str) -> str:
    """Where a file or folder of the repository is among the site's sources."""
    if path in _RENAMED:
        return _RENAMED[path]
    if (ROOT / path).is_dir():
        path += "/README.md" if (ROOT / path / "README.md").exists() else ".md"
    return path.removeprefix("docs/")


def origin(source: str) -> str:
    """Return a page's place in the repository; a folder's page has no file."""
    if source in _RENAMED.values():
        return next(path for path, name in _RENAMED.items() if name == source)
    return f"docs/{source}" if (ROOT / "docs" / source).exists() else source


def targets(path: str) -> Iterator[str]:
    """Return the link targets of a page, relative to the repository."""
    for match in _LINK.finditer(_BLOCK.sub("", (ROOT / path).read_text())):
        yield posixpath.normpath(posixpath.join(posixpath.dirname(path), match.group()))


def outside() -> list[str]:
    """All files and folders outside docs/ that can be reached from the pages."""
    ahead = [*FIRST, *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
    seen: set[str] = set()
    while ahead:
        path = ahead.pop()
        if path in seen or not (ROOT / path).exists():
            continue
        seen.add(path)
        if (ROOT / path).is_dir():
            inside = "README.md" if (ROOT / path / "README.md").exists() else "*.*"
            ahead += [one.relative_to(ROOT).as_posix() for one in (ROOT / path).glob(inside) if one.is_file()]
        elif path.endswith(".md"):
            ahead += targets(path)
    return sorted(path for path in seen if not path.startswith("docs/"))


def listing(folder: str) -> str:
    """A page with the files of a folder: pages as links, the others as they are."""
    parts = [f"# {folder}"]
    for path in sorted((ROOT / folder).iterdir()):
        if path.suffix == ".md":
            title = _TITLE.search(path.read_text())
            parts.append(f"- [{title.group(1) if title else path.stem}]({path.parent.name}/{path.name})")
        elif path.suffix == ".yaml":
            parts.append(f"## {path.name}\n\n```yaml\n{path.read_text().rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def rewritten(text: str, there: Callable[[str], str]) -> str:
    """Return a text with its links as `there` has them; code blocks do not change."""
    end, parts = 0, []
    for block in _BLOCK.finditer(text):
        parts += [_LINK.sub(lambda match: there(match.group()), text[end : block.start()]), block.group()]
        end = block.end()
    return "".join((*parts, _LINK.sub(lambda match: there(match.group()), text[end:])))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is outside."""
    for path in outside():
        if not (ROOT / path).is_dir():
            files.append(File.generated(config, place(path), abs_src_path=str(ROOT / path)))
        elif place(path) == f"{path}.md":
            files.append(File.generated(config, place(path), content=listing(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - as MkDocs calls it
    """Turn links between files of the repository into links between pages of the site."""
    path = origin(page.file.src_uri)
    if not (ROOT / path).is_file():
        return markdown  # of a folder: made for the site
    folder, here = posixpath.dirname(path), posixpath.dirname(page.file.src_uri)

    def there(link: str) -> str:
        target = posixpath.normpath(posixpath.join(folder, link))
        return posixpath.relpath(place(target), here or ".")

    return rewritten(markdown, there)
