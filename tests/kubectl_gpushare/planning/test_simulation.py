"""Simulated pods that arrive and end keep the accounting exact at every moment, and waiting pods get their turn."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import ledger
from gpushare.whatif.requesting_pod import RequestingPod
from kubectl_gpushare import plugin_errors
from kubectl_gpushare.planning import simulation
from kubectl_gpushare.planning.simulation import Arrival
from kubectl_gpushare.source import pod_files
from kubectl_gpushare.views import simulate
from tests import builders
from tests.gpushare.defragmentation import clusters

TRACE = """name,start,duration,request,memory,gpus
a,0,10,1,,1
b,5,10,0.5,40Gi,
c,20,,,,8
d,1,2,,,
"""
ALIBABA = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time
openb-pod-0000,12000,16384,1,460,,0,125
openb-pod-0001,6000,12288,0,0,,9,15
openb-pod-0002,6000,12288,2,1000,V100M16|V100M32,9,15
"""


def arrival(number: int, at: float, duration: float | None, request: str) -> Arrival:
    return Arrival(at, duration, RequestingPod.from_manifest(builders.pod(f"p{number}", request=request)))


def test_waiting_pods_are_retried_when_one_ends() -> None:
    world = clusters.cluster((clusters.owned("there", request="1"), "n1/0"), nodes=2, gpus=1)
    arrivals = [arrival(0, 0, 10, "1"), arrival(1, 2, 10, "0.5"), arrival(2, 30, None, "0.1")]
    outcome = simulation.run(world, arrivals)
    assert [(moment.running, moment.waiting) for moment in outcome.moments] == [(1, 0), (1, 1), (1, 0)]
    assert (outcome.waited, outcome.waited_seconds, outcome.never) == (1, 8.0, 0)
    assert outcome.first_refusal.startswith("no GPU fits 0.5 GPU")


PODS = st.lists(
    st.tuples(st.integers(0, 50), st.none() | st.integers(0, 30), st.sampled_from(["0.1", "0.3", "0.5", "1"])),
    min_size=1,
    max_size=30,
)


@pytest.mark.slow
@given(PODS)
@settings(max_examples=40, deadline=None)
def test_simulation_loses_no_pod_and_never_over_commits(pods: list[tuple[int, int | None, str]]) -> None:
    world = clusters.cluster((clusters.owned("there", request="1"), "n1/0"), nodes=2)
    arrivals = [arrival(number, *pod) for number, pod in enumerate(sorted(pods, key=lambda pod: pod[0]))]
    outcome = simulation.run(world, arrivals)
    last = outcome.moments[-1]
    held = [entry for view in world.views.values() for entry in view.node.allocations]
    assert len(held) == last.running + len(["there"])
    assert all(not ledger.violations(view.node) for view in world.views.values())
    assert outcome.arrived == len(pods) >= last.running + last.waiting
    assert last.waiting == outcome.never


def test_trace_is_sorted_by_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    pods = pod_files.read_trace(str(path))
    assert [(line.pod["metadata"]["name"], line.start_seconds, line.duration_seconds) for line in pods] == [
        ("a-2", 0.0, 10.0),
        ("b-3", 5.0, 10.0),
        ("c-4", 20.0, None),
    ]
    assert pods[1].pod["metadata"]["annotations"] == {"gpushare.io/request": "0.5", "gpushare.io/memory": "40Gi"}


def test_alibabas_trace_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(ALIBABA)
    pods = pod_files.read_trace(str(path))
    assert [line.pod["metadata"]["annotations"] for line in pods] == [
        {"gpushare.io/request": "0.46", "gpushare.io/gpus": "1"},
        {"gpushare.io/request": "1", "gpushare.io/gpus": "2", "gpushare.io/model": "V100M16,V100M32"},
    ]
    assert [line.duration_seconds for line in pods] == [125.0, 6.0]
    assert pods[0].pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "12000m", "memory": "16384Mi"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("name,start,request\na,soon,1", "line 2, is invalid"), ("name\na", "no pod that asks"), ("", "no pod")],
)
def test_invalid_trace_is_an_error(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(plugin_errors.FileError, match=sentence):
        pod_files.read_trace(str(path))


def test_nodes_are_made_from_a_short_text() -> None:
    nodes = pod_files.made_up_nodes("2x4:Tesla T4:16Gi")
    assert [(node.name, len(node.gpus), node.gpus[0].memory_bytes) for node in nodes] == [
        ("tesla-t4-0", 4, 16 * 2**30),
        ("tesla-t4-1", 4, 16 * 2**30),
    ]
    for text in ("0x8", "8", "2x4:T4:many", "2x"):
        with pytest.raises(plugin_errors.PluginError, match="--nodes"):
            pod_files.made_up_nodes(text)


def test_plot_stays_within_its_frame() -> None:
    outcome = simulation.run(clusters.cluster(nodes=2), [arrival(number, number, None, "0.3") for number in range(9)])
    tree = ElementTree.fromstring(simulate.picture(outcome))  # noqa: S314 - our own
    lines = [line.attrib["points"].split() for line in tree.iter("{http://www.w3.org/2000/svg}polyline")]
    assert len([points for points in lines if len(points) == len(outcome.moments)]) == 4
    assert all(
        0 <= float(x) <= 900 and 0 <= float(y) <= 420 for points in lines for x, y in (p.split(",") for p in points)
    )
