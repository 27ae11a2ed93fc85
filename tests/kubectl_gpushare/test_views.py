"""Every view against the text it is meant to print; `golden/README.md` says how to write those texts anew."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kubectl_gpushare import cards, layout, output, report
from kubectl_gpushare.options import Options
from kubectl_gpushare.page import Page
from kubectl_gpushare.snapshot import Snapshot
from kubectl_gpushare.table import Cell, Column, Table
from kubectl_gpushare.terminal import Terminal
from kubectl_gpushare.views import describe, describe_pod, gpus, nodes
from tests.kubectl_gpushare import sample

GOLDEN = Path(__file__).parent / "golden"
PIPE = Terminal()
WIDE, USUAL, SMALL = (Terminal(columns=columns) for columns in (160, 120, 80))
COLOURED = Terminal(columns=140, colours=True)
ASCII = Terminal(columns=140, unicode=False)


def compare(name: str, lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GPUSHARE_REFRESH_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def of_gpus() -> Table:
    return gpus.table(gpus.of(sample.nodes()))


def of_nodes() -> Table:
    return nodes.table(nodes.of(sample.nodes()))


def node(name: str) -> Page:
    found = next(one for one in sample.nodes() if one.name == name)
    return describe.node(found, sample.snapshot(), now=sample.NOW)


def gpu(name: str, snapshot: Snapshot | None = None) -> Page:
    found = next(card for card in cards.of(sample.nodes()) if card.name == name)
    owner = next(one for one in sample.nodes() if one.name == found.node)
    return describe.gpu(found, owner, snapshot or sample.snapshot(), now=sample.NOW)


def pod(name: str) -> Page:
    found = next(one for one in sample.pods() if one["metadata"]["name"] == name)
    return describe_pod.page(describe_pod.find(found, sample.nodes()), sample.snapshot(), now=sample.NOW)


TABLES = {
    "top-gpus-pipe": (of_gpus, PIPE, Options()),
    "top-gpus-pipe-wide": (of_gpus, PIPE, Options(output="wide")),
    "top-gpus-160": (of_gpus, WIDE, Options()),
    "top-gpus-120": (of_gpus, USUAL, Options()),
    "top-gpus-80": (of_gpus, SMALL, Options()),
    "top-gpus-colours": (of_gpus, COLOURED, Options()),
    "top-gpus-ascii": (of_gpus, ASCII, Options()),
    "top-gpus-no-headers": (of_gpus, PIPE, Options(no_headers=True)),
    "top-nodes-pipe": (of_nodes, PIPE, Options()),
    "top-nodes-pipe-wide": (of_nodes, PIPE, Options(output="wide")),
    "top-nodes-160": (of_nodes, WIDE, Options()),
    "top-nodes-80": (of_nodes, SMALL, Options()),
}

PAGES: dict[str, tuple[Callable[[], Page], Terminal]] = {
    "describe-node-pipe": (lambda: node("gpu-1"), PIPE),
    "describe-node-colours": (lambda: node("gpu-1"), COLOURED),
    "describe-node-troubled-80": (lambda: node("gpu-2"), SMALL),
    "describe-gpu-pipe": (lambda: gpu("gpu-1/0"), PIPE),
    "describe-gpu-ascii": (lambda: gpu("gpu-1/0"), ASCII),
    "describe-gpu-exclusive": (lambda: gpu("gpu-2/0"), PIPE),
    "describe-gpu-unhealthy": (lambda: gpu("gpu-2/1"), PIPE),
    "describe-gpu-mig": (lambda: gpu("gpu-2/3"), PIPE),
    "describe-gpu-gone": (lambda: gpu("gpu-2/GPU-gone"), PIPE),
    "describe-gpu-over-committed-80": (lambda: gpu("gpu-10/0"), SMALL),
    "describe-gpu-without-pods": (lambda: gpu("gpu-1/0", Snapshot((), None, ("pods: may not be read",))), PIPE),
    "describe-pod-placed": (lambda: pod("trainer"), PIPE),
    "describe-pod-two-gpus": (lambda: pod("llm"), PIPE),
    "describe-pod-waiting-80": (lambda: pod("waiting"), SMALL),
    "describe-pod-not-judged": (lambda: pod("just-made"), PIPE),
    "describe-pod-not-in-the-ledger": (lambda: pod("lost"), PIPE),
    "describe-pod-not-ours": (lambda: pod("nginx"), PIPE),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_looks_as_it_should(name: str) -> None:
    make, place, options = TABLES[name]
    compare(name, output.lines(make(), place, options))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_as_it_should(name: str) -> None:
    make, place = PAGES[name]
    compare(name, report.lines(make(), place))


def test_documents_keep_their_schema() -> None:
    snapshot = sample.snapshot()
    first, troubled = sample.nodes()[:2]
    card = cards.of([troubled])[0]
    documents = {
        "gpus": gpus.document(gpus.of(sample.nodes())),
        "nodes": nodes.document(nodes.of(sample.nodes())),
        "node": describe.node_document(first, snapshot),
        "gpu": describe.gpu_document(card, troubled, snapshot),
        "pod": describe_pod.document(describe_pod.find(sample.pods()[0], sample.nodes()), snapshot),
        "waiting": describe_pod.document(describe_pod.find(sample.pods()[7], sample.nodes()), snapshot),
    }
    stream = io.StringIO()
    output.write_yaml(documents, stream)
    compare("documents", stream.getvalue().splitlines())


@pytest.mark.parametrize("columns", range(44, 200))
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    for table in (of_gpus(), of_nodes()):
        lines, _ = layout.draw(table, Terminal(columns=columns))
        assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_no_line_of_a_page_is_wider_than_the_terminal(columns: int) -> None:
    for page in (node("gpu-1"), node("gpu-2"), gpu("gpu-10/0"), pod("trainer"), pod("waiting")):
        assert max(map(len, report.lines(page, Terminal(columns=columns)))) <= columns


def test_columns_that_find_no_place_are_named() -> None:
    _, left_out = layout.draw(of_gpus(), Terminal(columns=80))
    assert "MODE" in left_out
    assert not layout.draw(of_gpus(), Terminal(columns=200))[1]


def test_describe_leaves_nothing_out_on_a_narrow_terminal() -> None:
    drawn = "".join(line.strip() for line in report.lines(gpu("gpu-10/0"), SMALL))
    assert "x9z8q" in drawn
    assert "…" not in drawn


@pytest.mark.parametrize("column", gpus.SORT_KEYS)
def test_gpus_can_be_sorted_by_every_column(column: str) -> None:
    found = gpus.of(sample.nodes(), column)
    key, largest_first = gpus.SORT_KEYS[column]
    assert len(found) == 13
    assert [key(card) for card in found] == sorted(map(key, found), reverse=largest_first)
    for one, other in itertools.pairwise(found):
        if key(one) == key(other):
            assert cards.natural(one.name) < cards.natural(other.name)


@pytest.mark.parametrize("column", nodes.SORT_KEYS)
def test_nodes_can_be_sorted_by_every_column(column: str) -> None:
    found = nodes.of(sample.nodes(), column)
    key, largest_first = nodes.SORT_KEYS[column]
    assert [key(row) for row in found] == sorted(map(key, found), reverse=largest_first)


def test_nothing_that_others_write_is_obeyed_by_the_terminal() -> None:
    evil = "\x1b[2Jx\ny"
    snapshot = Snapshot((), None, (evil,))
    table = Table((Column("NAME"),), [[evil], [Cell(evil, "good")]])
    for text in (*report.lines(gpu("gpu-1/0", snapshot), PIPE), *layout.draw(table, PIPE)[0]):
        assert text.isprintable()
