"""The pictures in docs/images show the plugin's present output. After a change, run `make docs`."""

from __future__ import annotations

import html
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from docs.cli import make as manual
from docs.images import layout, system

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images"
DRAWN = {"layout-agent.svg", "layout.svg", "system.svg"}
NAMES = sorted(path.name for path in FOLDER.glob("*.svg"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    subprocess.run([sys.executable, str(FOLDER / "make.py"), str(folder)], check=True, timeout=120, cwd=ROOT)
    return folder


@pytest.mark.slow
def test_the_pictures_are_exactly_the_expected_ones(made: Path) -> None:
    assert sorted(path.name for path in made.iterdir()) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_picture_equals_the_plugins_output(made: Path, name: str) -> None:
    assert (made / name).read_text() == (FOLDER / name).read_text()


@pytest.mark.parametrize("name", NAMES)
def test_each_picture_is_svg_without_external_resources(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - it is ours
    assert "href" not in text
    assert "url(" not in text


@pytest.mark.parametrize("name", NAMES)
def test_each_picture_shows_a_busy_cluster(name: str) -> None:
    seen = set(
        re.findall(r"NoAgent|NoNode|OverCommitted|Unhealthy|Gone|<unknown>", html.unescape((FOLDER / name).read_text()))
    )
    assert seen == set(), f"{name} shows a cluster in trouble: docs/images/believable.py is what it is made from"


def test_the_tables_in_pictures_show_usage() -> None:
    for name in ("top.svg", "top-pods.svg"):
        text = html.unescape((FOLDER / name).read_text())
        assert "BUSY" in text
        assert len(re.findall(r">0\.[0-9]+/1<", text)) > 3, "no figures under BUSY"


def test_every_picture_appears_in_the_manual() -> None:
    assert {f"{name}.svg" for pictures in manual.PICTURES.values() for name in pictures} == {*NAMES} - DRAWN
    assert "](docs/images/system.svg)" in (ROOT / "README.md").read_text()
    assert "](images/system.svg)" in (ROOT / "docs" / "index.md").read_text()
    for name in ("layout.svg", "layout-agent.svg"):
        assert f"](docs/images/{name})" in (ROOT / "ARCHITECTURE.md").read_text()


def test_folders_that_import_each_other_get_a_red_line() -> None:
    graph = {"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset()}
    assert layout.floors(graph) == [["c"], ["b"], ["a"]]
    assert layout.picture("three", graph).count('<line class="line"') == 2  # a needs no arrow to c
    assert 'class="wrong"' not in layout.picture("three", graph)
    assert layout.picture("three", {**graph, "c": frozenset("b")}).count('<line class="wrong"') == 2


def test_no_folder_imports_one_that_imports_it() -> None:
    assert "wrong" not in "".join(re.findall(r'class="([\w-]+)"', layout.house() + layout.agent()))


def test_the_system_picture_defines_all_colours_in_both_themes() -> None:
    text = system.picture()
    light, _, dark = text.partition("prefers-color-scheme:dark")
    for name in {name for names in re.findall(r'class="([\w-]+)"', text) for name in names.split()}:
        assert f".{name}" in light
        assert f".{name}" in dark.partition("</style>")[0]


def test_a_text_too_wide_for_its_box_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "COLUMN", system.COLUMN // 2)
    with pytest.raises(ValueError, match="has no room in"):
        system.picture()
