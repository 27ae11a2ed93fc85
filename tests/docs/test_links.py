"""Links are valid, and pages and manifests refer to this project only."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs import pages

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
# References to headings of other pages in words: `[agent.md](agent.md), Health`.
_NAMED_PART = re.compile(r"\]\(([\w./-]+\.md)\), ([A-Z][^).;,:|]*)")
# Any site except those that every checkout names, from which nothing is downloaded.
_FOREIGN = r"[a-z]://(?!localhost\b|not-released\.invalid\b|docs\.pytest\.org\b)[\w-]+\."
# Documents, scripts and manifests: files that people install, read or run before any code.
TEXTS = re.compile(r"(\.md|\.ya?ml|\.template|\.sh|Makefile|\.toml|\.lock|\.cfg|\.ini)$|^\.ci/")


def anchors(page: Path) -> set[str]:
    """Return the anchors that the headings of a page get."""
    titles = _HEADING.findall(pages.prose(page))
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_every_link_target_exists(page: Path) -> None:
    wrong = []
    for target in _LINK.findall(pages.prose(page)):
        path, _, anchor = target.partition("#")
        destination = (page.parent / path).resolve() if path else page
        if "://" in target:
            wrong.append(f"{target}: no other site is linked to")
        elif not destination.exists() or not destination.is_relative_to(pages.ROOT):
            wrong.append(f"{target} is not there")
        elif anchor and anchor not in anchors(destination):
            wrong.append(f"{target}: there is no such heading")
    assert wrong == []


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_headings_named_on_other_pages_exist(page: Path) -> None:
    links = [
        ((page.parent / target).resolve(), part.strip()) for target, part in _NAMED_PART.findall(pages.prose(page))
    ]
    wrong = [f"{target.name}, {part}" for target, part in links if part not in _HEADING.findall(target.read_text())]
    assert wrong == []


def test_every_page_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    ahead = [pages.ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            ahead += [(page.parent / target.partition("#")[0]).resolve() for target in _LINK.findall(pages.prose(page))]
    assert {pages.name(page) for page in set(pages.PAGES) - seen} == set()


def tracked() -> list[Path]:
    """Return the tracked files that are text for people and for other projects' programs."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=pages.ROOT, capture_output=True, text=True, check=True, timeout=30)
    return [
        pages.ROOT / name for name in listed.stdout.splitlines() if TEXTS.search(name) and (pages.ROOT / name).exists()
    ]


def test_no_text_has_a_registry_or_a_local_path() -> None:
    # Nodes pull an image without a host name from their default registry.
    places = [*map(re.escape, (f"{pages.ROOT}/", f"{Path.home()}/")), _FOREIGN, r"image: *[^/\s]*[.:][^/\s]*/"]
    place = re.compile("|".join(places))
    wrong = [
        f"{path.relative_to(pages.ROOT)}: {line.strip()}"
        for path in tracked()
        for line in path.read_text().splitlines()
        if place.search(line)
    ]
    assert wrong == []


def test_no_text_has_merge_conflict_markers() -> None:
    left = re.compile(r"^(<{7}|>{7}|\|{7}) ", re.MULTILINE)
    assert [path for path in tracked() if left.search(path.read_text())] == []
