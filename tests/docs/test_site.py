"""The manual as a site: it builds without a warning, shows every page, and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.test_links import tracked

pytestmark = pytest.mark.slow

# Elements that a browser loads by itself; it does not load `<a href>`.
_FETCHED = re.compile(
    r'(?:<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=|url\(|@import )["\']?(?:https?:)?//'
)


def build(checkout: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(pages.ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_on_the_site(site: Path) -> None:
    there = {path.relative_to(site).as_posix().lower() for path in site.rglob("*.html")}
    names = [pages.name(page).removeprefix("docs/").lower() for page in pages.PAGES]
    wanted = {re.sub(r"(?<=/)readme\.html$", "index.html", name.replace(".md", ".html")) for name in names}
    assert wanted - there == set()
    assert {"index.html", "readme.html", "security-policy.html", "config/samples.html"} <= there
    assert len(there) == len(list(site.rglob("*.html")))  # some file systems ignore case


def test_links_to_pages_outside_docs_work(site: Path) -> None:
    assert 'href="ARCHITECTURE.html"' in (site / "index.html").read_text()
    assert 'href="../first-pod.html"' in (site / "interposer" / "index.html").read_text()  # in the navigation
    assert 'href="operations.html"' in (site / "readme.html").read_text()
    assert "half-gpu.yaml" in (site / "config" / "samples.html").read_text()


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    texts = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    assert [str(path) for path in texts if _FETCHED.search(path.read_text())] == []
    assert _FETCHED.search('<link rel="preconnect" href="https://fonts.invalid">')


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    pictures = [
        path
        for kind in ("svg", "png")
        for place in ("docs/**", "bench/results")
        for path in pages.ROOT.glob(f"{place}/*.{kind}")
    ]
    for path in (*tracked(), *pictures, pages.ROOT / "docs" / "site" / "outside.py"):
        copy = tmp_path / "checkout" / path.relative_to(pages.ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    page = tmp_path / "checkout" / "docs" / "mig.md"
    page.write_text(f"{page.read_text()}\n[page](../NOWHERE.md), [heading](../SECURITY.md#nowhere)\n")
    done = build(tmp_path / "checkout", tmp_path / "site")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "'NOWHERE.md'" in said
    assert "does not contain an anchor '#nowhere'" in said
    assert said.count("WARNING") == 2  # the only warning
