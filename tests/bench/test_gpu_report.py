"""The page of a run on a GPU, complete at any moment."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path

from bench.gpu.report import Report


def report() -> Report:
    return Report({"gpu": "NVIDIA H100 80GB HBM3"}, datetime.date(2026, 1, 2), "first")


def test_an_interrupted_case_keeps_the_rows_that_it_has() -> None:
    made = report()
    rows: list[list[str]] = []
    made.table("Nanoseconds a call", ["", "native"], rows)
    assert "Nanoseconds a call: nothing measured" in made.page()
    rows.append(["launch", "2100"])
    assert "| launch |   2100 |" in made.page()


def test_files_have_plain_names_and_the_figures(tmp_path: Path) -> None:
    made = report()
    made.add("split.30", [29.0, 31.0, 30.0], "%", against="request", goal=30.0)
    made.fail("latency", TimeoutError("slow"))
    made.attached[".smi.txt"] = "NVSMI LOG"
    page = made.write(tmp_path / "out")
    names = {path.name for path in page.parent.iterdir()}
    assert names == {f"2026-01-02-gpu-nvidia-h100-80gb-hbm3-first{end}" for end in (".md", ".json", ".smi.txt")}
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in names)
    document = json.loads(page.with_suffix(".json").read_text())
    assert document["failed"] == ["latency"]
    assert document["figures"][0] == {
        "figure": "gpu.split.30",
        "value": 30.0,
        "unit": "%",
        "against": "request",
        "ratio": 1.0,
        "rounds": [29.0, 31.0, 30.0],
    }
    assert "latency: failed: TimeoutError slow" in page.read_text()
