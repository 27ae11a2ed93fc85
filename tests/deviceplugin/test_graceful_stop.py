"""A stopping agent: the report in the GPUNode, and the pods it waits for, which have a share but no devices yet."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from deviceplugin import agent
from deviceplugin.state import pod_resources
from gpushare import contract
from gpushare.allocation import Steps
from gpushare.cluster import api_errors
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


@pytest.mark.parametrize(
    ("pods", "held", "awaited"),
    [
        pytest.param((), (), ["default/job", "default/web"], id="placed, and nothing of them is seen yet"),
        pytest.param(
            (builders.pod("job", uid="u2", phase="Pending"),),
            (has("web"),),
            ["default/job"],
            id="one is bound, and not admitted",
        ),
        pytest.param((), (has("web"), has("job")), [], id="both have their devices"),
        pytest.param((builders.pod("job", uid="u2", phase="Failed"),), (has("web"),), [], id="one has ended"),
        pytest.param(
            (builders.pod("job", uid="u9", phase="Failed"),),
            (has("web"),),
            ["default/job"],
            id="its namesake has ended",
        ),
        pytest.param(
            (), (has("web"), has("job", namespace="other")), ["default/job"], id="another namespace's has some"
        ),
        pytest.param(
            (), (has("web"), has("job", resource="nvidia.com/gpu")), ["default/job"], id="of another resource"
        ),
    ],
)
def test_pods_with_a_share_but_no_devices_are_on_their_way(pods: Any, held: Any, awaited: list[str]) -> None:
    assert agent.on_their_way(PLACED, pods, held) == awaited


def test_pod_is_on_its_way_until_each_lasting_container_with_a_share_has_devices() -> None:
    (share,) = PLACED.allocations[0].shares
    shares = (
        dataclasses.replace(share, containers=("prepare",), steps=Steps(0, 0)),
        share,
        dataclasses.replace(share, containers=("copy", "second")),
    )
    node = dataclasses.replace(PLACED, allocations=(dataclasses.replace(PLACED.allocations[0], shares=shares),))
    second = pod_resources.ContainerDevices("default", "web", "second", contract.RESOURCE_IDLE, ("share-2",))
    assert agent.on_their_way(node, (), (has("web"),)) == ["default/web"]
    assert agent.on_their_way(node, (), (has("web"), second)) == []


def test_gated_pod_with_a_reservation_is_not_on_its_way() -> None:
    reserved = builders.allocation(f"{contract.BACKFILL_PREFIX}a1", pod_name="gated", uid="u3")
    assert agent.on_their_way(dataclasses.replace(PLACED, allocations=(reserved,)), (), ()) == []


def test_without_a_gpunode_no_pod_is_on_its_way() -> None:
    assert agent.on_their_way(None, (), ()) == []


class Status:
    """A status whose first writes fail with these errors."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    async def stop(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


async def stopping(status: Status, directory: Path) -> None:
    await agent.drain(
        status,  # type: ignore[arg-type]
        node=lambda: None,
        pods=tuple,
        pod_resources_socket=directory / "none",
    )


async def test_reporting_the_stop_is_retried_while_the_api_server_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "STOP_RETRY_SECONDS", 0.01)
    status = Status(
        api_errors.Unavailable("down", retry_after_seconds=3600.0),
        api_errors.Forbidden("it has not read yet who may do what"),
        api_errors.Conflict("changed"),
    )
    await stopping(status, tmp_path)
    assert status.failures == []


async def test_reporting_the_stop_without_a_gpunode_is_not_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    status = Status(api_errors.NotFound("no GPUNode"), api_errors.Unavailable("not asked any more"))
    await stopping(status, tmp_path)
    assert len(status.failures) == 1
    assert "Pods may start while no agent runs" in caplog.text


async def test_an_unreachable_api_server_does_not_delay_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent, "MAX_DRAIN_SECONDS", 0.1)
    await stopping(Status(*[api_errors.Unavailable("down")] * 1000), tmp_path)
    assert "not done within 0.1 s" in caplog.records[-1].__dict__["err"]
