"""Which pods an agent that stops waits for: those with a share on its node that have no devices yet."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from deviceplugin import graceful_stop
from deviceplugin.kubelet import pod_resources
from gpushare import contract
from tests import builders

PLACED = dataclasses.replace(
    builders.node("node-a"),
    allocations=(
        builders.allocation("a1", pod_name="web", uid="u1"),
        builders.allocation("a2", pod_name="job", uid="u2"),
    ),
)


def has(pod: str, *, namespace: str = "default", resource: str = contract.RESOURCE_PERCENT) -> Any:
    return pod_resources.ContainerDevices(namespace, pod, "main", resource, ("share-1",))


def pod(name: str, uid: str, phase: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", "uid": uid}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("pods", "held", "awaited"),
    [
        pytest.param((), (), ["default/job", "default/web"], id="placed, and nothing of them is seen yet"),
        pytest.param(
            (pod("job", "u2", "Pending"),), (has("web"),), ["default/job"], id="one is bound, and not admitted"
        ),
        pytest.param((), (has("web"), has("job")), [], id="both have their devices"),
        pytest.param((pod("job", "u2", "Failed"),), (has("web"),), [], id="one has ended"),
        pytest.param((pod("job", "u9", "Failed"),), (has("web"),), ["default/job"], id="its namesake has ended"),
        pytest.param(
            (), (has("web"), has("job", namespace="other")), ["default/job"], id="another namespace's has some"
        ),
        pytest.param(
            (), (has("web"), has("job", resource="nvidia.com/gpu")), ["default/job"], id="of another resource"
        ),
    ],
)
def test_who_is_on_the_way(pods: Any, held: Any, awaited: list[str]) -> None:
    assert graceful_stop.on_their_way(PLACED, pods, held) == awaited


def test_without_a_gpunode_nobody_is() -> None:
    assert graceful_stop.on_their_way(None, (), ()) == []
