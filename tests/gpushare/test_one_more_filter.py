"""A row in the filter table is all that the engine needs to apply a filter and to word its refusal."""

from __future__ import annotations

import ast
import operator
import pathlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpushare.placement
from gpushare import placement
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView, Placement, filters
from gpushare.placement.filters import FilterInput, GpuFilter, Sees, Verdict
from gpushare.placement.fleet import Fleet
from gpushare.refusal import Refusal
from gpushare.request import Request
from tests.gpushare.laws import strategies

nodes = st.lists(strategies.gpu_nodes("node-a") | strategies.gpu_nodes("node-b"), min_size=1, max_size=4)


def numa(ask: FilterInput) -> Verdict:
    return ("is on NUMA node 1", 4.0) if ask.gpu.numa_node == 1 else None


def spread_out(ask: FilterInput) -> Verdict:
    """Reject GPUs with a pod that has the same affinity label."""
    mine = ask.constraints.affinity
    same = bool(mine) and any(pod.labels.affinity == mine for pod in ask.used.holders)
    return (f"has a pod with the affinity label {mine}", 3.0) if same else None


def half_full(ask: FilterInput) -> Verdict:
    amount = ask.memory
    return None if amount.free >= amount.asked else ("has too little memory free", amount.shortfall)


MORE = {
    "numa": GpuFilter(numa, "of the other NUMA node"),
    "spread-out": GpuFilter(spread_out, "used by pods with the same affinity label", Sees.LABELS),
    "half-full": GpuFilter(half_full, "rather full", Sees.AMOUNT, amount=operator.attrgetter("memory")),
}


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nodes, strategies.requests(), st.sampled_from(sorted(MORE)), st.booleans())
def test_engine_applies_and_words_the_filter(
    monkeypatch: pytest.MonkeyPatch, gpu_nodes: list[GpuNode], asked: Request, name: str, is_first: bool
) -> None:
    one_more, rules = {name: MORE[name]}, filters.RULES
    with monkeypatch.context() as patched:
        patched.setattr(filters, "RULES", {**one_more, **rules} if is_first else {**rules, **one_more})
        fleet = Fleet()
        for node in gpu_nodes:
            fleet.update(NodeView.from_node(node))
        views = sorted(fleet.views(), key=lambda view: view.node.name)
        answer, wanted = fleet.place(asked), placement.place(views, asked)
        assert type(answer) is type(wanted)
        if isinstance(answer, Refusal):
            assert answer.reason == str(wanted)
        if isinstance(answer, Placement):
            view = next(view for view in views if view.node.name == answer.node)
            gpus = {gpu.uuid: (gpu, used) for gpu, used in view.gpus()}
            for demand, share in zip(asked.demands, answer.shares, strict=True):
                for gpu, used in (gpus[uuid] for uuid in share.gpu_uuids):
                    assert MORE[name].check(FilterInput(gpu, used, demand.share, asked.constraints)) is None


def test_engine_names_no_rule() -> None:
    """A rule is one function with its row in `filters`, its test, and its row in the docs: three files."""
    folder = pathlib.Path(gpushare.placement.__file__).parent
    for file in sorted(folder.glob("*.py")):
        if file.name == "filters.py":
            continue
        names = {node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)}
        assert not names & filters.RULES.keys(), f"{file.name} knows a rule by its name"
