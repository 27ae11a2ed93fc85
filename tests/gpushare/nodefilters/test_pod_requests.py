"""Pod requests follow the scheduler's formula."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.nodefilters import PodInfo
from gpushare.nodefilters.node_info import NodeInfo
from gpushare.nodefilters.pod_requests import format_amount, requests


def container(name: str = "main", cpu: str = "0", *, sidecar: bool = False, **limits: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "resources": {"requests": {"cpu": cpu}, "limits": limits}}
    return {**made, "restartPolicy": "Always"} if sidecar else made


def cpu_of(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **more: Any) -> int:
    running = more.pop("running", False)
    status = more.pop("status", {})
    amounts = requests(
        {"spec": {"containers": containers, "initContainers": init, **more}, "status": status}, running=running
    )
    return amounts.get("cpu", 0)


@pytest.mark.parametrize(
    ("total", "init"),
    [
        (3000, ()),
        (3000, (container(cpu="2"),)),
        (5000, (container(cpu="5"), container(cpu="4"))),
        (4000, (container(cpu="1", sidecar=True),)),
        (6000, (container(cpu="1", sidecar=True), container(cpu="5"))),
        (5000, (container(cpu="5"), container(cpu="1", sidecar=True))),
        (7000, (container(cpu="1", sidecar=True), container(cpu="5"), container(cpu="3", sidecar=True), container(cpu="1"))),
    ],
)  # fmt: skip
def test_containers_are_summed_and_init_containers_run_in_sequence(total: int, init: Any) -> None:
    assert cpu_of(container(cpu="1"), container(cpu="2"), init=init) == total


def test_requests_default_to_limits_and_overhead_is_added() -> None:
    limited = {"name": "main", "resources": {"limits": {"cpu": "2"}}}
    assert cpu_of(limited, overhead={"cpu": "250m"}) == 2250


def test_pod_level_request_replaces_the_sum() -> None:
    assert cpu_of(container(cpu="1"), resources={"requests": {"cpu": "3"}}, overhead={"cpu": "1"}) == 4000


def test_amounts_are_rounded_up_after_summing() -> None:
    assert cpu_of(container(cpu="0.0004"), container(cpu="0.0004")) == 1
    assert cpu_of(container(cpu="0.0006"), container(cpu="0.0006")) == 2


def test_uncounted_resources_are_ignored() -> None:
    asked = {"cpu": "1", "storage": "1Gi", "hugepages-2Mi": "2Mi", "example.com/thing": "2", "memory": "0"}
    amounts = requests({"spec": {"containers": [{"name": "main", "resources": {"requests": asked}}]}})
    assert amounts == {"cpu": 1000, "hugepages-2Mi": 2 * 2**20, "example.com/thing": 2}


def resized(actual: str, allocated: str, reason: str = "") -> dict[str, Any]:
    entry = {"name": "main", "resources": {"requests": {"cpu": actual}}, "allocatedResources": {"cpu": allocated}}
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    return {"containerStatuses": [entry], "conditions": conditions}


@pytest.mark.parametrize(
    ("status", "total"),
    [
        (resized("1", "1"), 2000),
        (resized("4", "1"), 4000),
        (resized("1", "3"), 3000),
        (resized("1", "1", "Deferred"), 2000),
        (resized("1", "1", "Infeasible"), 1000),
        ({"containerStatuses": [{"name": "main"}]}, 2000),
    ],
)
def test_running_pod_holds_the_maximum_of_requested_and_allocated(status: dict[str, Any], total: int) -> None:
    assert cpu_of(container(cpu="2"), status=status, running=True) == total
    assert cpu_of(container(cpu="2"), status=status) == 2000


@pytest.mark.parametrize(
    ("name", "amount", "text"),
    [("cpu", 500, "500m"), ("cpu", 2000, "2"), ("memory", 2**31, "2Gi"), ("example.com/thing", 3, "3")],
)
def test_amounts_are_formatted_for_people(name: str, amount: int, text: str) -> None:
    assert format_amount(name, amount) == text


CPUS = st.sampled_from(["0", "100m", "1", "1500m"])


@pytest.mark.slow
@given(st.lists(st.tuples(CPUS, st.booleans()), max_size=4), st.lists(st.tuples(CPUS, st.booleans()), max_size=4))
def test_node_info_returns_to_empty_when_all_pods_left(
    come: list[tuple[str, bool]], stay: list[tuple[str, bool]]
) -> None:
    def pod_infos(drawn: list[tuple[str, bool]]) -> list[PodInfo]:
        pods = [{"spec": {"containers": [container(cpu=cpu)], "hostNetwork": bound}} for cpu, bound in drawn]
        for pod in pods:
            pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80}]
        return [PodInfo.from_manifest(pod, "node-a") for pod in pods]

    info, other = NodeInfo(), NodeInfo()
    for pod_info in pod_infos(stay):
        info.change(pod_info, 1)
        other.change(pod_info, 1)
    for newcomer in pod_infos(come):
        info.change(newcomer, 1)
    for newcomer in pod_infos(come):
        info.change(newcomer, -1)
    assert (info.count, +info.amounts, info.ports) == (other.count, +other.amounts, other.ports)
