"""The tree of `top -i` has the figures of `top`, and shows what is open and what leads to a match."""

from __future__ import annotations

import dataclasses

import pytest

from gpushare import pod
from kubectl_gpushare.output.values import Cell, Column, Row
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import gpu_table, gpu_tree, node_table, pod_table, tree_rows
from kubectl_gpushare.views.gpu_tree import ClusterTree, Look, TreeRow
from tests import builders
from tests.kubectl_gpushare import sample

MARKS = ("+", "-", "|")
SNAPSHOT = Snapshot(sample.nodes(), sample.pods(), usage=sample.used())
TREE = gpu_tree.build(SNAPSHOT, now=sample.NOW)
ALL = Look(gpu_tree.all_keys(TREE))


def text(cell: str | Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


def by_header(columns: tuple[Column, ...], row: Row) -> dict[str, str]:
    return {column.header: text(cell) for column, cell in zip(columns, row, strict=True)}


def shown(tree: ClusterTree, row: TreeRow) -> dict[str, str]:
    return by_header(tree.columns, gpu_tree.cells(tree, row, marks=MARKS))


def all_rows(tree: ClusterTree, look: Look, namespace: str = "") -> tree_rows.TreeRows:
    rows = tree_rows.TreeRows(tree, look, namespace)
    rows.advance()
    return rows


def names(look: Look, tree: ClusterTree = TREE, namespace: str = "") -> list[str]:
    return [row.subject[1] for row in all_rows(tree, look, namespace) if row.item is not None]


def test_nodes_and_gpus_have_the_figures_of_top() -> None:
    gpus = gpu_table.table(gpu_table.build(dataclasses.replace(SNAPSHOT, node_objects=None)), with_used=True)
    nodes = node_table.table(node_table.build(dataclasses.replace(SNAPSHOT, node_objects=None)), with_used=True)
    expected = {
        by_header(table.columns, row)["NAME"]: by_header(table.columns, row)
        for table in (gpus, nodes)
        for row in table.rows
    }
    compared = 0
    for row in all_rows(TREE, ALL):
        figures = expected.get(row.subject[1], {})
        for header, cell in shown(TREE, row).items():
            if header in figures and header != "NAME":
                assert cell == figures[header], f"{header} of {row.subject[1]}"
                compared += 1
    assert compared > 100
    assert {header: text(cell) for header, cell in TREE.totals.items()} == {
        header: text(cell) for header, cell in (nodes.totals or {}).items()
    }


def test_a_pod_shows_what_it_holds_of_this_gpu() -> None:
    rows = {(row.subject[1], row.key[1]): shown(TREE, row) for row in all_rows(TREE, ALL) if row.depth == 2}
    two = [rows["ml/llm", sample.uuid("gpu-1", index)] for index in (1, 2)]
    assert [(row["COMPUTE"], row["MEMORY"], row["USED"], row["STATUS"]) for row in two] == [
        ("1", "80Gi", "71Gi", "Running")
    ] * 2
    pods = pod_table.table(pod_table.build(SNAPSHOT), now=sample.NOW, with_used=True)
    single = by_header(pods.columns, pods.rows[0])
    assert single["NAME"].startswith("a-long")
    alone = rows["batch/a-long-deployment-name-7d4b9c6f5-x9z8q", sample.uuid("gpu-10", 0)]
    assert (alone["COMPUTE"], alone["MEMORY"], alone["STATUS"]) == (
        single["REQUEST"],
        single["MEMORY"],
        single["STATE"],
    )


def test_pods_that_hold_nothing_come_first() -> None:
    assert names(Look(frozenset({gpu_tree.UNPLACED})))[:4] == ["ml/just-made", "ml/lost", "ml/waiting", "gpu-1"]
    assert names(Look())[0] == "gpu-1"


def test_green_is_not_used_and_trouble_has_a_colour() -> None:
    styles = {
        text(cell): cell.style
        for row in all_rows(TREE, ALL)
        for cell in gpu_tree.cells(TREE, row, marks=MARKS)
        if isinstance(cell, Cell)
    }
    assert "good" not in styles.values()
    assert styles["Unhealthy"] == "bad"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("gpu-1", "trainer"), ["gpu-1", "gpu-1/0", "ml/trainer"]),
        (("gpu-10",), ["gpu-10"]),  # itself: what is below it stays closed
        (("waiting",), ["ml/waiting"]),
        (("unhealthy",), ["gpu-2"]),
        (("nothing",), []),
    ],
)
def test_a_filter_shows_matches_and_what_is_above_them(words: tuple[str, ...], expected: list[str]) -> None:
    assert names(Look(words=words)) == expected


def test_rows_are_sorted_as_the_lists_of_top_are() -> None:
    for key in gpu_tree.SORT_KEYS:
        rows = all_rows(TREE, dataclasses.replace(ALL, sort_by=key))
        nodes = node_table.build(dataclasses.replace(SNAPSHOT, node_objects=None), key)
        assert [row.subject[1] for row in rows if row.key[0] == "node"] == [row.node.name for row in nodes]


def test_a_namespace_keeps_its_gpus_and_its_waiting_pods() -> None:
    tree = gpu_tree.build(SNAPSHOT, now=sample.NOW, namespace="web")
    assert names(Look(gpu_tree.all_keys(tree)), tree, "web") == ["gpu-1", "gpu-1/3", "web/small"]


def test_figures_of_an_unchanged_node_are_kept() -> None:
    nodes = (dataclasses.replace(sample.nodes()[0], config="other"), *SNAPSHOT.nodes[1:])
    after = gpu_tree.build(dataclasses.replace(SNAPSHOT, nodes=nodes), now=sample.NOW, previous=TREE)
    kept = {name for name, branch in after.known.items() if branch is TREE.known[name]}
    assert kept == {"gpu-2", "gpu-10"}
    other = gpu_tree.build(dataclasses.replace(SNAPSHOT, nodes=nodes, usage=None), now=sample.NOW, previous=TREE)
    assert not [name for name, branch in other.known.items() if branch is TREE.known[name]]


def test_states_that_were_not_read_are_unknown() -> None:
    waiting = [manifest for manifest in sample.pods() if pod.gates(manifest)]
    tree = gpu_tree.build(Snapshot(sample.nodes()), waiting, now=sample.NOW)
    rows = [shown(tree, row) for row in all_rows(tree, Look(gpu_tree.all_keys(tree))) if row.subject[0] == "pod"]
    assert {row["STATUS"].partition(":")[0] for row in rows} == {"Gated", "<unknown>", "Reserved"}


@pytest.mark.parametrize("words", [(), ("ml",), ("gpu-1", "0"), ("nothing",)])
@pytest.mark.parametrize("namespace", ["", "web"])
def test_rows_are_counted_without_being_made(words: tuple[str, ...], namespace: str) -> None:
    some = frozenset(sorted(ALL.opened)[::2])
    for opened in (frozenset[gpu_tree.Key](), some, ALL.opened):
        rows = all_rows(TREE, Look(opened, words), namespace)
        made = list(rows)
        assert len(made) == len(rows)
        assert [rows.find(row.key) for row in made] == [*range(len(made))]
        assert rows[1:3] == made[1:3]
        assert rows.find(("gpu", "no-such-node", "GPU-0")) is None


def test_rows_are_counted_in_slices() -> None:
    tree = gpu_tree.build(Snapshot(tuple(builders.node(f"n{number}", gpus=1) for number in range(100))), now=0.0)
    rows, last = tree_rows.TreeRows(tree, Look()), ("node", "n99")
    rows.advance(is_due=lambda: True)
    assert 0 < len(rows) < 100
    assert not rows.is_complete
    assert rows.find(last) is None
    rows.advance()
    assert (len(rows), rows.find(last), rows.is_complete) == (100, 99, True)
