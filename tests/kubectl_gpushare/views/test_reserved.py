"""Reservations of pods that have not appeared, and waiting pods, are shown in `top pods`, in refusals and in `why`."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpushare import placement, quantity, request
from gpushare.placement import NodeView
from gpushare.refusal import Refusal
from kubectl_gpushare.output.values import Cell
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import pod_table
from tests import builders
from tests.kubectl_gpushare import sample

NOW = quantity.parse_time("2026-03-01T12:00:00Z")


def reserved(number: int, *, seconds: float = 41) -> Any:
    entry = builders.allocation(
        f"id-{number}", f"GPU-node-a-{number % 4}", request=50, memory_gib=40, pod_name="", reserved_until=NOW + seconds
    )
    return dataclasses.replace(entry, pod=dataclasses.replace(entry.pod, namespace="t2"))


NODE = dataclasses.replace(builders.node("node-a"), allocations=tuple(map(reserved, range(8))))


def shown(taken: Snapshot) -> list[dict[str, str]]:
    made = pod_table.table(pod_table.build(taken), now=NOW)
    lines = [*made.rows, made.totals_row or ()]
    texts = [[cell.text if isinstance(cell, Cell) else cell for cell in line] for line in lines]
    return [dict(zip([column.header for column in made.columns], line, strict=True)) for line in texts]


def test_each_reservation_is_a_line_with_its_expiry() -> None:
    *rows, total = shown(Snapshot((NODE,), ()))
    assert len(rows) == 8
    assert {(row["NAMESPACE"], row["NAME"], row["STATE"]) for row in rows} == {
        ("t2", "<not-yet-named>", "Reserved:41s")
    }
    assert sorted(row["ALLOCATION"] for row in rows) == [f"id-{number}" for number in range(8)]
    assert (total["GPUS"], total["STATE"], total["REQUEST"], total["MEMORY"]) == ("8-pods", "8-reserved", "4", "320Gi")
    late = dataclasses.replace(NODE, allocations=(reserved(0, seconds=-3),))
    assert shown(Snapshot((late,), ()))[0]["STATE"] == "Reserved:expired"
    assert pod_table.item(pod_table.build(Snapshot((NODE,), ()))[0])["reservedUntil"] == "2026-03-01T12:00:41.000000Z"


def test_refusal_names_reservations_and_their_expiry() -> None:
    asked = request.parse(builders.pod("waits", request="0.5", memory="1Gi"))
    refusal = placement.place([NodeView.from_node(NODE)], asked)
    assert isinstance(refusal, Refusal)
    said = "node-a/0 has 0 of its compute free, 1 is reserved for pods of t2 that have not appeared yet, until 12:00:41 UTC at the latest"
    assert str(refusal).endswith(said)
    less = request.parse(builders.pod("waits", memory="1Gi"))
    said = "has 0 of 80Gi free, 80Gi is reserved for pods of t2 that have not appeared yet, until 12:00:41 UTC at the latest"
    assert str(placement.place([NodeView.from_node(NODE)], less)).endswith(said)


def test_waiting_pod_shows_its_request_and_counts_nothing() -> None:
    waiting = sample.gated("ml/waiting", request="0.5", memory="60Gi", limit="0.8", gpus="2")
    parts = sample.gated("ml/parts", request="0.25")
    nonsense = sample.gated("ml/wrong", request="a lot")
    rows = {
        row["NAME"]: (row["REQUEST"], row["LIMIT"], row["MEMORY"])
        for row in shown(Snapshot((), (waiting, parts, nonsense)))
    }
    assert rows["waiting"] == ("1", "0.8", "120Gi")
    assert rows["parts"] == ("0.25", "1", "25%")
    assert rows["wrong"] == ("<none>", "<none>", "<none>")
    assert rows[""] == ("0", "", "0")  # the totals


def test_document_has_limit_and_request() -> None:
    items = {row.name: pod_table.item(row) for row in pod_table.build(sample.snapshot())}
    assert items["trainer"]["limitsPercent"] == [80]
    assert items["waiting"]["asksFor"] == ["0.5 GPU with 60Gi"]
    assert items["waiting"]["limitsPercent"] == []
