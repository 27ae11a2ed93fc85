"""Every view equals its golden file; `golden/README.md` says how to write them again."""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from gpushare.defragmentation import goals
from gpushare.whatif.requesting_pod import RequestingPod
from gpushare.whatif.world import World
from kubectl_gpushare.commands import top
from kubectl_gpushare.options import Options
from kubectl_gpushare.output import layout, printing
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.output.values import Cell, Column, Page, Table
from kubectl_gpushare.planning import auditing, capacity, reasons, simulation
from kubectl_gpushare.planning.simulation import Arrival
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import audit as audit_view
from kubectl_gpushare.views import (
    configuration_state,
    defrag,
    fit,
    gpu_summary,
    gpu_table,
    node_table,
    pod_table,
    simulate,
    why,
)
from kubectl_gpushare.views import gpu_page as described_gpus
from kubectl_gpushare.views import pod_page as described_pod
from tests import builders
from tests.gpushare.defragmentation.clusters import NONE, hole, owned
from tests.gpushare.defragmentation.clusters import cluster as of_pods_on
from tests.kubectl_gpushare import answered, answers, sample

GOLDEN = Path(__file__).parent / "golden"
PIPE = Terminal()
WIDEST, WIDE, USUAL, SMALL, SMALLEST = (Terminal(columns=columns) for columns in (200, 160, 120, 80, 40))
COLOURED = Terminal(columns=140, colours=True)
ASCII = Terminal(columns=140, unicode=False)


def compare(name: str, lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GPUSHARE_REFRESH_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def of_gpus(*, used: bool = False) -> Table:
    usage = sample.used() if used else None
    return gpu_table.table(gpu_table.build(Snapshot(tuple(sample.nodes()), usage=usage)), with_used=used)


def of_nodes(*, used: bool = False) -> Table:
    usage = sample.used() if used else None
    return node_table.table(
        node_table.build(Snapshot(tuple(sample.nodes()), usage=usage)), now=sample.NOW, with_used=used
    )


def of_pods(*, used: bool = False, namespaces: bool = True) -> Table:
    taken = dataclasses.replace(sample.snapshot(), usage=sample.used() if used else None)
    return pod_table.table(pod_table.build(taken), now=sample.NOW, namespaces=namespaces, with_used=used)


def node(name: str) -> Page:
    gpunode = next(node for node in sample.nodes() if node.name == name)
    return described_gpus.node(gpunode, sample.snapshot(), now=sample.NOW)


def gpu(name: str, snapshot: Snapshot | None = None) -> Page:
    summary = next(gpu for gpu in gpu_summary.summarize(sample.nodes()) if gpu.name == name)
    owner = next(node for node in sample.nodes() if node.name == summary.node)
    return described_gpus.gpu(summary, owner, snapshot or sample.snapshot(), now=sample.NOW)


def pod(name: str, snapshot: Snapshot | None = None) -> Page:
    target = next(pod for pod in sample.pods() if pod["metadata"]["name"] == name)
    return described_pod.page(described_pod.find(target, sample.nodes()), snapshot or sample.snapshot(), now=sample.NOW)


def full() -> Snapshot:
    """Return the sample with every kind of object read."""
    return dataclasses.replace(sample.snapshot(), usage=sample.used(), events=sample.events())


def reasons_of(manifest: dict[str, Any], snapshot: Snapshot | None = None) -> Page:
    taken = snapshot or sample.snapshot()
    answer = reasons.explain(manifest, taken)
    return why.page(described_pod.find(manifest, taken.nodes), answer, taken.notes)


def placed(name: str) -> Page:
    return reasons_of(next(pod for pod in sample.pods() if pod["metadata"]["name"] == name))


def fitting(count: int = 1, **annotations: str) -> Page:
    world = World(sample.nodes(), None, sample.pods())
    asked = RequestingPod.from_manifest(builders.pod("asked", **annotations))
    return fit.page(capacity.answer(world, [capacity.PodBatch("", asked, count)]), ("a note",))


def defragmented(*placed: tuple[str, str, str], **asks: str) -> Page:
    pods = [(owned(name, request=size, kind="" if "fixed" in name else "ReplicaSet"), on) for name, size, on in placed]
    plan = goals.make_room(of_pods_on(*pods, nodes=2), [hole(**asks)], NONE, stay=False)
    return defrag.page(plan, ("a note",))


def emptied() -> Page:
    pods = [(owned("web", request="0.3"), "n0/0"), (owned("batch", request="0.4"), "n1/0")]
    return defrag.page(goals.empty_nodes(of_pods_on(*pods, nodes=2, gpus=1), NONE, max_moves=9), ())


def improved(*moves: int) -> Page:
    """Return a plan by value whose moves admit no waiting pod."""
    pods = [(owned("web", request="0.3"), "n0/0"), (owned("batch", request="0.4"), "n1/0")]
    made = goals.empty_nodes(of_pods_on(*pods, nodes=2, gpus=1), NONE, max_moves=9)
    steps = tuple(dataclasses.replace(made.steps[0], name="", gpus="") for _ in moves)
    return defrag.page(dataclasses.replace(made, steps=steps, gained=0.3), ())


ALL = ("n0/0", "n0/1", "n1/0", "n1/1")


def simulated() -> Table:
    arrivals = [
        Arrival(
            60.0 * number,
            900.0,
            RequestingPod.from_manifest(builders.pod(f"p{number}", request=("0.3", "0.5", "1")[number % 3])),
        )
        for number in range(60)
    ]
    return simulate.table(simulation.run(World([builders.node("a"), builders.node("b")]), arrivals))


TABLES_OF_ANSWERS = {
    "audit": (lambda: answered.audited("problems"), PIPE, Options()),
    "audit-80": (lambda: answered.audited("problems"), SMALL, Options()),
    "audit-shares": (lambda: answered.audited("shares"), PIPE, Options()),
    "audit-shares-80": (lambda: answered.audited("shares"), SMALL, Options()),
    "rightsize": (lambda: answered.rightsized().table(), PIPE, Options(output="wide")),
    "rightsize-80": (lambda: answered.rightsized(namespaces=False).table(), SMALL, Options()),
    "rightsize-freed": (lambda: answered.rightsized().freed(sample.nodes()), PIPE, Options()),
    "config-nodes": (lambda: configuration_state.table(answered.configured()), PIPE, Options()),
    "config-nodes-80": (lambda: configuration_state.table(answered.configured()), SMALL, Options()),
    "config-entries-80": (
        lambda: configuration_state.entries_table(answered.configurations(), sample.nodes()),
        SMALL,
        Options(),
    ),
}

TABLES = TABLES_OF_ANSWERS | {
    "simulate": (simulated, PIPE, Options()),
    "simulate-80": (simulated, SMALL, Options()),
    "top-gpus-pipe": (of_gpus, PIPE, Options()),
    "top-gpus-pipe-wide": (of_gpus, PIPE, Options(output="wide")),
    "top-gpus-160": (of_gpus, WIDE, Options()),
    "top-gpus-120": (of_gpus, USUAL, Options()),
    "top-gpus-80": (of_gpus, SMALL, Options()),
    "top-gpus-40": (of_gpus, SMALLEST, Options()),
    "top-gpus-used-200": (lambda: of_gpus(used=True), WIDEST, Options()),
    "top-gpus-colours": (of_gpus, COLOURED, Options()),
    "top-gpus-ascii": (of_gpus, ASCII, Options()),
    "top-gpus-no-headers": (of_gpus, PIPE, Options(no_headers=True)),
    "top-gpus-used": (lambda: of_gpus(used=True), PIPE, Options()),
    "top-gpus-used-80": (lambda: of_gpus(used=True), SMALL, Options()),
    "top-nodes-used": (lambda: of_nodes(used=True), PIPE, Options()),
    "top-pods-pipe": (of_pods, PIPE, Options()),
    "top-pods-pipe-wide": (of_pods, PIPE, Options(output="wide")),
    "top-pods-used": (lambda: of_pods(used=True), PIPE, Options()),
    "top-pods-80": (lambda: of_pods(used=True, namespaces=False), SMALL, Options()),
    "top-nodes-pipe": (of_nodes, PIPE, Options()),
    "top-nodes-pipe-wide": (of_nodes, PIPE, Options(output="wide")),
    "top-nodes-160": (of_nodes, WIDE, Options()),
    "top-nodes-80": (of_nodes, SMALL, Options()),
    "top-nodes-40": (of_nodes, SMALLEST, Options()),
    "top-nodes-used-200": (lambda: of_nodes(used=True), WIDEST, Options()),
    "top-nodes-used-80": (lambda: of_nodes(used=True), SMALL, Options()),
    "top-pods-wide-80": (lambda: of_pods(used=True), SMALL, Options(output="wide")),
    "top-pods-40": (lambda: of_pods(used=True, namespaces=False), SMALLEST, Options()),
    "top-pods-200": (lambda: of_pods(used=True), WIDEST, Options()),
    "simulate-40": (simulated, SMALLEST, Options()),
    "simulate-200": (simulated, WIDEST, Options()),
}

PAGES: dict[str, tuple[Callable[[], Page], Terminal]] = {
    "config-node-waiting": (lambda: configuration_state.page(answered.configured()[0], ()), PIPE),
    "config-node-waiting-80": (lambda: configuration_state.page(answered.configured()[0], ()), SMALL),
    "config-node-refused": (lambda: configuration_state.page(answered.configured()[1], ("a note",)), PIPE),
    "config-entry": (
        lambda: configuration_state.entry_page("default", answered.configurations()["default"], sample.nodes()),
        PIPE,
    ),
    "describe-node-pipe": (lambda: node("gpu-1"), PIPE),
    "describe-node-colours": (lambda: node("gpu-1"), COLOURED),
    "describe-node-troubled-80": (lambda: node("gpu-2"), SMALL),
    "describe-gpu-pipe": (lambda: gpu("gpu-1/0"), PIPE),
    "describe-gpu-used": (lambda: gpu("gpu-1/0", full()), PIPE),
    "describe-gpu-used-80": (lambda: gpu("gpu-1/0", full()), SMALL),
    "describe-gpu-used-40": (lambda: gpu("gpu-1/0", full()), SMALLEST),
    "describe-gpu-used-200": (lambda: gpu("gpu-1/0", full()), WIDEST),
    "describe-node-40": (lambda: node("gpu-1"), SMALLEST),
    "describe-node-200": (lambda: node("gpu-1"), WIDEST),
    "describe-pod-events-40": (lambda: pod("waiting", full()), SMALLEST),
    "describe-pod-events-200": (lambda: pod("waiting", full()), WIDEST),
    "why-waiting-40": (lambda: reasons_of(sample.gated("ml/huge", request="1", memory="75Gi")), SMALLEST),
    "why-waiting-200": (lambda: reasons_of(sample.gated("ml/huge", request="1", memory="75Gi")), WIDEST),
    "fit-some-40": (lambda: fitting(20, request="0.3"), SMALLEST),
    "fit-some-200": (lambda: fitting(20, request="0.3"), WIDEST),
    "defrag-no-way-40": (lambda: defragmented(*((f"fixed-{at}", "0.5", at) for at in ALL), request="1"), SMALLEST),
    "describe-pod-events-80": (lambda: pod("waiting", full()), SMALL),
    "describe-gpu-ascii": (lambda: gpu("gpu-1/0"), ASCII),
    "describe-gpu-exclusive": (lambda: gpu("gpu-2/0"), PIPE),
    "describe-gpu-unhealthy": (lambda: gpu("gpu-2/1"), PIPE),
    "describe-gpu-mig": (lambda: gpu("gpu-2/3"), PIPE),
    "describe-gpu-mig-used": (lambda: gpu("gpu-2/3", full()), PIPE),
    "describe-gpu-gone": (lambda: gpu("gpu-2/GPU-gone"), PIPE),
    "describe-gpu-over-committed-80": (lambda: gpu("gpu-10/0"), SMALL),
    "describe-gpu-without-pods": (lambda: gpu("gpu-1/0", Snapshot((), None, ("pods: may not be read",))), PIPE),
    "describe-pod-placed": (lambda: pod("trainer"), PIPE),
    "describe-pod-two-gpus": (lambda: pod("llm"), PIPE),
    "describe-pod-waiting-80": (lambda: pod("waiting"), SMALL),
    "describe-pod-not-judged": (lambda: pod("just-made"), PIPE),
    "describe-pod-not-in-the-ledger": (lambda: pod("lost"), PIPE),
    "describe-pod-not-ours": (lambda: pod("nginx"), PIPE),
    "why-waiting": (lambda: reasons_of(sample.gated("ml/huge", request="1", memory="75Gi")), PIPE),
    "why-waiting-80": (lambda: reasons_of(sample.gated("ml/huge", request="1", memory="75Gi")), SMALL),
    "why-waiting-fits-now": (lambda: placed("waiting"), PIPE),
    "why-held-back": (
        lambda: reasons_of(sample.gated("ml/member", request="0.1", group="g", group_size="2")),
        PIPE,
    ),
    "why-placed": (lambda: placed("trainer"), PIPE),
    "why-placed-elsewhere-now": (lambda: placed("llm"), PIPE),
    "fit-yes": (lambda: fitting(request="0.25", memory="4Gi"), PIPE),
    "fit-some-80": (lambda: fitting(20, request="0.3"), SMALL),
    "defrag-plan": (
        lambda: defragmented(
            ("web-1", "0.25", "n0/0"),
            ("web-2", "0.3", "n0/1"),
            ("fixed", "0.4", "n1/0"),
            ("batch", "0.5", "n1/1"),
            request="1",
            gpus="2",
        ),
        PIPE,
    ),
    "defrag-no-way-80": (lambda: defragmented(*((f"fixed-{at}", "0.5", at) for at in ALL), request="1"), SMALL),
    "defrag-empty-nodes": (emptied, PIPE),
    "defrag-moves": (lambda: improved(1), PIPE),
    "defrag-moves-none": (improved, PIPE),
    "fit-no": (lambda: fitting(request="1", gpus="4"), PIPE),
}


@pytest.mark.parametrize("name", TABLES)
def test_table_equals_the_golden_file(name: str) -> None:
    make, place, options = TABLES[name]
    compare(name, printing.lines(make(), place, options))


@pytest.mark.parametrize("name", PAGES)
def test_page_equals_the_golden_file(name: str) -> None:
    make, place = PAGES[name]
    compare(name, layout.page_lines(make(), place))


def test_documents_keep_their_schema() -> None:
    snapshot = sample.snapshot()
    first, troubled = sample.nodes()[:2]
    gpu = gpu_summary.summarize([troubled])[0]
    documents: dict[str, Any] = {
        "gpus": gpu_table.document(gpu_table.build(Snapshot(tuple(sample.nodes())))),
        "nodes": node_table.document(node_table.build(Snapshot(tuple(sample.nodes())))),
        "pods": pod_table.document(pod_table.build(dataclasses.replace(sample.snapshot(), usage=sample.used()))),
        "node": described_gpus.node_document(first, snapshot),
        "gpu": described_gpus.gpu_document(gpu, troubled, snapshot),
        "pod": described_pod.document(described_pod.find(sample.pods()[0], sample.nodes()), snapshot),
        "why": why.document(
            described_pod.find(sample.pods()[0], sample.nodes()), reasons.explain(sample.pods()[0], snapshot), ()
        ),
        "audit": audit_view.document(
            auditing.check(sample.nodes()[:1], answers.read(answers.troubled())),
            gpu_summary.names(sample.nodes()),
            ("a note",),
        ),
        "rightsizing": answered.rightsized().document(),
        "configurations": configuration_state.document(answered.configured()[:1], {"a": "version: v1"}),
        "waiting": described_pod.document(described_pod.find(sample.pods()[7], sample.nodes()), snapshot),
    }
    for kind in ("gpus", "nodes", "pods", "audit", "rightsizing", "configurations"):
        documents[kind]["items"] = [*documents[kind]["items"]]
    stream = io.StringIO()
    printing.write_yaml(documents, stream)
    compare("documents", stream.getvalue().splitlines())


@pytest.mark.parametrize("columns", range(40, 200))
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    for table in (of_gpus(), of_nodes(), of_pods(used=True), *(make() for make, *_ in TABLES_OF_ANSWERS.values())):
        lines, _ = layout.draw(table, Terminal(columns=columns))
        assert max(map(len, lines)) <= columns


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 57, 80, 100, 120, 200])
def test_no_line_of_a_page_is_wider_than_the_terminal(columns: int) -> None:
    for make, _ in PAGES.values():
        assert max(map(layout.width, layout.page_lines(make(), Terminal(columns=columns, colours=True)))) <= columns


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_status_is_visible_on_the_narrowest_terminal(columns: int) -> None:
    for table, state in ((of_gpus(), "Unheal"), (of_nodes(), "NotRea"), (of_pods(used=True), "Gated")):
        lines, left_out = layout.draw(table, Terminal(columns=columns))
        assert not {"STATUS", "STATE"} & set(left_out)
        assert any(state in line for line in lines)


def test_usage_and_place_fit_in_80_columns() -> None:
    for table in (of_gpus(used=True), of_nodes(used=True), of_pods(used=True, namespaces=False)):
        assert not {"USED", "BUSY"} & set(layout.draw(table, SMALL)[1])
    for wide in (False, True):
        lines, left_out = layout.draw(of_pods(used=True), SMALL, wide=wide)
        assert "BUSY" not in left_out
        assert any("/1,2 " in line for line in lines), "the indices of a pod's GPUs are cut off"


def test_left_out_columns_are_named() -> None:
    _, left_out = layout.draw(of_gpus(), Terminal(columns=80))
    assert "MODE" in left_out
    assert not layout.draw(of_gpus(), Terminal(columns=200))[1]


def test_describe_shows_everything_on_a_narrow_terminal() -> None:
    drawn = "".join(line.strip() for line in layout.page_lines(gpu("gpu-10/0"), SMALL))
    assert "x9z8q" in drawn
    assert "…" not in drawn


@pytest.mark.parametrize("column", gpu_table.SORT_KEYS)
def test_gpus_can_be_sorted_by_every_column(column: str) -> None:
    gpus = gpu_table.build(Snapshot(tuple(sample.nodes()), usage=sample.used()), column)
    key, largest_first = gpu_table.SORT_KEYS[column]
    assert len(gpus) == 13
    assert [key(gpu) for gpu in gpus] == sorted(map(key, gpus), reverse=largest_first)
    for first, other in itertools.pairwise(gpus):
        if key(first) == key(other):
            assert gpu_summary.natural(first.name) < gpu_summary.natural(other.name)


@pytest.mark.parametrize("column", node_table.SORT_KEYS)
def test_nodes_can_be_sorted_by_every_column(column: str) -> None:
    rows = node_table.build(Snapshot(tuple(sample.nodes()), usage=sample.used()), column)
    key, largest_first = node_table.SORT_KEYS[column]
    assert [key(row) for row in rows] == sorted(map(key, rows), reverse=largest_first)


@pytest.mark.parametrize("column", pod_table.SORT_KEYS)
def test_pods_can_be_sorted_by_every_column(column: str) -> None:
    rows = pod_table.build(dataclasses.replace(sample.snapshot(), usage=sample.used()), sort_by=column)
    key, largest_first = pod_table.SORT_KEYS[column]
    assert [key(row) for row in rows] == sorted(map(key, rows), reverse=largest_first)


def test_sort_keys_equal_the_views_columns() -> None:
    for kind, view in (("gpus", gpu_table), ("nodes", node_table), ("pods", pod_table)):
        assert top.SORT_KEYS[kind] == tuple(view.SORT_KEYS)


def test_views_replace_control_characters() -> None:
    evil = "\x1b[2Jx\ny"
    snapshot = Snapshot((), None, (evil,))
    table = Table((Column("NAME"),), [[evil], [Cell(evil, "good")]])
    for text in (*layout.page_lines(gpu("gpu-1/0", snapshot), PIPE), *layout.draw(table, PIPE)[0]):
        assert text.isprintable()
