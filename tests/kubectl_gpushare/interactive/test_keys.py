"""The keys of `top -i`, pressed in a terminal that textual plays."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from gpushare import codec, contract, ledger
from gpushare.gpunode import GpuNode
from kubectl_gpushare import kubectl, options, plugin_errors
from kubectl_gpushare.interactive import tree_screen
from kubectl_gpushare.interactive.dialogs import AskScreen, PageScreen, WorkingScreen
from kubectl_gpushare.interactive.tree_actions import TreeAction, TreeActions
from kubectl_gpushare.interactive.tree_app import TreeApp
from kubectl_gpushare.interactive.tree_reader import Outage
from kubectl_gpushare.interactive.tree_table import TreeTable
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.output.values import Row
from kubectl_gpushare.source import chosen_source, files, live_cluster
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import gpu_tree
from tests import builders
from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.programs import kubectl_that_resizes
from tests.programs import script

SAMPLE = gpu_tree.build(sample.snapshot(), now=sample.NOW)


class Person:
    """A person at the terminal: presses keys and reads the screen."""

    def __init__(self, app: TreeApp, pilot: Pilot[int]) -> None:
        self.app = app
        self._pilot = pilot

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)
        await self._pilot.pause()

    async def until(self, true: Callable[[], bool]) -> None:
        for _ in range(400):
            await self._pilot.pause(0.02)
            if true():
                return
        raise AssertionError("it never came; there is:\n" + "\n".join(self.screen()))

    async def shows(self, text: str) -> None:
        await self.until(lambda: text in " ".join(" ".join(self.screen()).split()))

    def screen(self) -> list[str]:
        drawn = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in drawn]

    @property
    def table(self) -> TreeTable:
        return self.app.tree_screen.query_one(TreeTable)

    @property
    def selected(self) -> str:
        return self.table.selected.subject[1] if self.table.selected else ""


@asynccontextmanager
async def at_the_terminal(
    origin: chosen_source.Source,
    tree: gpu_tree.ClusterTree = SAMPLE,
    *,
    size: tuple[int, int] = (80, 24),
    **chosen: Any,
) -> AsyncIterator[Person]:
    app = TreeApp(tree, TreeActions(origin, options.Options(**chosen)), Terminal(colours=True))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Person(app, pilot)


@pytest.fixture
def saved_cluster(saved: Path) -> files.Files:
    return files.Files([str(saved)])


async def test_the_small_cluster_fits_80_columns_by_24_lines(saved_cluster: files.Files) -> None:
    async with at_the_terminal(saved_cluster) as person:
        shown = person.screen()
    assert max(map(len, shown)) <= 80
    assert shown[2].split() == ["NAME", "COMPUTE", "MEMORY", "LARGEST", "STATUS"]
    assert [line.split()[:3] for line in shown[3:5]] == [["▾", "3", "pods"], ["│", "ml/just-made", "0.5"]]
    assert shown[-3].startswith("TOTAL") or shown[-4].startswith("TOTAL")
    assert shown[-1] == "w why  d describe  c cordon  r resize  s sort  / filter  ? help  q quit"


async def test_keys_open_close_and_walk(saved_cluster: files.Files) -> None:
    async with at_the_terminal(saved_cluster) as person:
        await person.press("E")
        assert next(line for line in person.screen() if line.startswith(("▸", "▾"))).startswith("▸ 3 pods w")
        await person.press("down", "right", "down", "right", "down")
        assert person.selected == "ml/trainer"
        await person.press("left")
        assert person.selected == "gpu-1/0"
        await person.press("left", "left")
        assert person.selected == "gpu-1"
        await person.press("enter", "end")
        assert person.selected == "gpu-10"
        await person.press("e", "end")
        assert person.selected == "gpu-10/3"


async def test_selection_and_open_rows_stay_while_the_cluster_changes(saved_cluster: files.Files) -> None:
    async with at_the_terminal(saved_cluster) as person:
        await person.press("E", "down", "right", *["down"] * 4)
        assert person.selected == "gpu-1/3"
        line = next(number for number, text in enumerate(person.screen()) if "GPU 3" in text)
        earlier = dataclasses.replace(builders.node("a-node", gpus=1))
        person.app.show(gpu_tree.build(Snapshot((earlier, *sample.nodes()), sample.pods()), now=sample.NOW), None)
        await person.shows("a-node")
        assert person.selected == "gpu-1/3"
        assert "GPU 3" in person.screen()[line + 1]
        person.app.show(gpu_tree.build(Snapshot((earlier, sample.nodes()[2])), now=sample.NOW), None)
        await person.until(lambda: person.selected != "gpu-1/3")
        assert person.selected in {"a-node", "gpu-10"}  # the nearest of those that are left


async def test_text_from_the_cluster_cannot_control_the_terminal(saved_cluster: files.Files) -> None:
    evil = "\x1b]0;title\x07\x1b[41m\u202etxt"
    gpu = dataclasses.replace(sample.gpu("n", 0), healthy=False, health_reason=evil, model=evil)
    held = sample.held(f"ml/{evil}", gpu.uuid, request=50, gib=8)
    gone = sample.held(f"ml/{evil}", "GPU-gone", request=50, gib=8)
    tree = gpu_tree.build(Snapshot((GpuNode("n", (gpu,), (held, gone)),), notes=(evil,)), now=0.0)
    async with at_the_terminal(saved_cluster, tree) as person:
        await person.press("e")
        shown = "".join(person.screen())
        assert "�" in shown
        assert shown.isprintable()
        await person.press("end", "up", "up", "w")
        await person.shows("cannot be the name of a pod")
        assert "".join(person.screen()).isprintable()


@pytest.mark.parametrize("size", [(20, 4), (40, 10), (200, 60)])
async def test_any_size_is_drawn(saved_cluster: files.Files, size: tuple[int, int]) -> None:
    async with at_the_terminal(saved_cluster, size=size) as person:
        await person.press("e", "end", "d", "escape", "question_mark", "escape", "slash", "escape")
        assert len(person.screen()) == size[1]
        assert person.selected == "gpu-10/3"


async def test_an_outage_says_since_when_and_ends(saved_cluster: files.Files) -> None:
    async with at_the_terminal(saved_cluster) as person:
        person.app.show(SAMPLE, Outage("the API server cannot be reached: no route", 1.0))
        await person.shows("the API server cannot be reached: no route")
        assert "not updated for 5" in " ".join(person.screen())  # some 56 years
        person.app.show(SAMPLE, None)
        await person.until(lambda: "no route" not in " ".join(person.screen()))


async def test_a_filter_and_a_sort_order(saved_cluster: files.Files) -> None:
    async with at_the_terminal(saved_cluster) as person:
        await person.press("slash", *"gpu-1 trai", "enter", "down", "down")
        assert person.selected == "ml/trainer"
        await person.press("escape", "s", "s")
        assert any("COMPUTE▼" in line for line in person.screen())
        await person.press("slash", *"zzz")
        await person.shows("nothing has all these words")


async def test_only_rows_on_screen_are_drawn(saved_cluster: files.Files, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = gpu_tree.build(Snapshot(tuple(builders.node(f"n{number}", gpus=8) for number in range(500))), now=0.0)
    made: list[gpu_tree.TreeRow] = []
    cells = gpu_tree.cells

    def counted(tree: gpu_tree.ClusterTree, row: gpu_tree.TreeRow, *, marks: tuple[str, str, str]) -> Row:
        made.append(row)
        return cells(tree, row, marks=marks)

    monkeypatch.setattr(gpu_tree, "cells", counted)
    async with at_the_terminal(saved_cluster, tree) as person:
        await person.press("e", "end", "pageup")
        assert person.selected.startswith("n499/") or person.selected.startswith("n49")
        assert len(person.app.tree_screen._rows or ()) == 4500
    assert 0 < len(made) < 24 * 20


async def test_a_large_cluster_is_shown_while_its_rows_are_counted(
    saved_cluster: files.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = gpu_tree.build(Snapshot(tuple(builders.node(f"n{number}", gpus=1) for number in range(200))), now=0.0)
    monkeypatch.setattr(tree_screen, "_COUNT_SECONDS", 0.0)
    monkeypatch.setattr(tree_screen, "_KEY_SECONDS", 1e6)  # the rest is counted when a key needs it
    async with at_the_terminal(saved_cluster, tree) as person:
        await person.press("slash", "n")
        assert any("▸ n1 " in line for line in person.screen())
        assert not person.app.tree_screen._rows.is_complete  # type: ignore[union-attr]
        await person.press("enter", "end")
        assert person.selected == "n199"
        rows = person.app.tree_screen._rows
        await person.press("slash", "backspace", "enter")
        assert person.app.tree_screen._rows is not rows
        assert person.selected != "n199"  # until it is counted
        person.app.tree_screen._rows.advance()  # type: ignore[union-attr]
        person.table.grow()
        assert person.selected == "n199"


async def test_the_cursor_stays_on_its_row_while_rows_are_counted(
    saved_cluster: files.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [builders.node(f"n{number:03}", gpus=1) for number in range(200)]

    def tree(*gone: str) -> gpu_tree.ClusterTree:
        return gpu_tree.build(Snapshot(tuple(node for node in nodes if node.name not in gone)), now=0.0)

    async with at_the_terminal(saved_cluster, tree()) as person:
        await person.press("end")
        person.table.select(165)
        assert person.selected == "n165"
        line = next(number for number, text in enumerate(person.screen()) if "n165" in text)
        monkeypatch.setattr(tree_screen, "_COUNT_SECONDS", 0.0)
        monkeypatch.setattr(tree_screen, "_KEY_SECONDS", 1e6)
        person.app.show(tree(), None)
        await person.until(lambda: not person.app.tree_screen._rows.is_complete)  # type: ignore[union-attr]
        assert person.table.selected is None
        await person.press("w")  # acts on the row, so it is counted
        await person.shows("why explains a pod: select one")
        assert person.selected == "n165"
        await person.until(lambda: "n165" in person.screen()[line])
        person.app.show(tree("n165"), None)
        await person.until(lambda: person.table.selected is None)
        await person.press("c")
        await person.shows("the selected row has gone: select another")
        assert person.selected == "n166"  # in its place
        person.app.show(tree("n165", "n166"), None)
        await person.until(lambda: person.table.selected is None)
        await person.press("down")
        assert person.selected == "n168"


@pytest.mark.slow
async def test_why_and_describe_say_what_the_verbs_say(saved_cluster: files.Files) -> None:
    async with at_the_terminal(saved_cluster, size=(120, 40), files=("cluster.json",)) as person:
        await person.press("down", "down", "down", "w")
        await person.shows("it would fit now, on gpu-1/3")
        assert isinstance(person.app.screen, PageScreen)
        assert person.screen()[0] == "$ kubectl gpushare why waiting -n ml --from cluster.json"
        await person.press("escape", "down", "down", "d")
        await person.shows("GPU-6770752d31-0000")
        await person.press("q", "w")
        await person.shows("why explains a pod: select one")


@pytest.mark.parametrize(("key", "verb"), [("c", "cordon"), ("r", "resize")])
async def test_changes_are_off_with_files(saved_cluster: files.Files, key: str, verb: str) -> None:
    async with at_the_terminal(saved_cluster) as person:
        await person.press(
            "down", "down", "down", "down", "down", "right", "down", *(["up"] if key == "c" else []), key
        )
        assert f"{verb} is off: files of --from are only read" in person.screen()


def test_flags_that_may_not_be_written_are_named_as_they_are_typed() -> None:
    allowed = frozenset({"request", "memory_limit"})
    action = TreeAction(("resize", "trainer", "-n", "ml"), "", allowed, lambda _: (), lambda _: [])
    assert action.params("--memory-limit 20Gi")["memory_limit"] == "20Gi"
    with pytest.raises(
        plugin_errors.PluginError, match=r"only these flags can be used here: --memory-limit, --request$"
    ):
        action.params("--keep")


@pytest.fixture
def changing(tmp_path: Path) -> live_cluster.LiveCluster:
    """A cluster with one share, on a kubectl that answers from a file."""
    node = ledger.reserve(builders.node("n0", gpus=1), builders.allocation("a1", "GPU-n0-0", uid="u1"))
    node = ledger.reserve(node, builders.allocation("b", "GPU-n0-0", request=40, memory_gib=64, uid="u2"))
    manifest = builders.pod(request="0.5", memory="8Gi", node="n0", allocation="a1")
    manifest["metadata"]["uid"] = "u1"
    state = {"gpunodes": [codec.to_document(node)], "pods": [manifest], "log": []}
    (tmp_path / "state.json").write_text(json.dumps(state))
    program = tmp_path / "kubectl"
    program.write_text(script(kubectl_that_resizes.serve, str(tmp_path / "state.json"), "given"))
    program.chmod(0o755)
    return live_cluster.LiveCluster(kubectl.Kubectl((), str(program)))


@pytest.mark.slow
async def test_a_resize_is_shown_before_it_is_asked_for(changing: live_cluster.LiveCluster, tmp_path: Path) -> None:
    tree = gpu_tree.build(Snapshot(tuple(changing.gpu_nodes()), changing.pods()), now=0.0)

    def log() -> list[dict[str, Any]]:
        changes: list[dict[str, Any]] = json.loads((tmp_path / "state.json").read_text())["log"]
        return changes

    async with at_the_terminal(changing, tree, size=(100, 30), connection=("--context=there",)) as person:
        await person.press("right", "down", "right", "down", "r")
        assert person.screen()[0] == "$ kubectl gpushare resize trainer -n default --context=there"
        flags = person.app.screen.query_one(Input)
        assert flags.value == "--request 0.5 --limit 1 --memory 8Gi"
        flags.value = "--request 0.8 --memory 8Gi"
        await person.press("enter")
        await person.shows("no: n0/0 has 0.1 of its compute free")
        await person.press("enter")
        await person.shows("nothing was changed: n0/0 has 0.1 of its compute free")
        assert log() == []
        await person.press("r")
        flags = person.app.screen.query_one(Input)
        for wrong, said in (
            ("--reques 1", "no such option"),
            ("-o json", "only these flags"),
            ('"', "cannot be read"),
            ("", "specify the new size"),
        ):
            flags.value = wrong
            await person.press("enter")
            await person.shows(said)
        flags.value = "--memory 16Gi"
        await person.press("enter")
        await person.shows("yes, at once")
        flags.value = "--memory 12Gi"  # was not shown
        await person.press("enter")
        await person.shows("12Gi Free Beside It")
        assert log() == []
        await person.press("enter")
        await person.shows("pod/trainer asks for 0.5 GPU with 12Gi")
        assert log() == [{contract.MEMORY: "12Gi", "dry": False}]


async def test_help_lists_keys_columns_without_room_and_all_warnings(saved_cluster: files.Files) -> None:
    async with at_the_terminal(saved_cluster, size=(80, 40)) as person:
        await person.press("question_mark")
        await person.shows("overcommitted: 120% of its compute")
        assert "the terminal is too narrow" in " ".join(person.screen())
        await person.press("escape")
        assert not isinstance(person.app.screen, WorkingScreen | AskScreen)
        assert person.app.screen.query_one("#keys", Static)


async def test_q_and_ctrl_c_end_with_their_codes(saved_cluster: files.Files) -> None:
    for key, code in (("q", 0), ("ctrl+c", 130)):
        async with at_the_terminal(saved_cluster) as person:
            await person.press("slash", "ctrl+c") if code else await person.press(key)
        assert person.app.return_value == code
