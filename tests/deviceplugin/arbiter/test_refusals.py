"""Processes without a share get the reason in one sentence, and the lookup waits for shares that may appear soon."""

from __future__ import annotations

import asyncio
import time

import pytest

from deviceplugin.link import node_shares
from gpushare.allocation import GivenShare
from gpushare.cluster import api_errors
from tests.deviceplugin import named
from tests.deviceplugin.arbiter_node import GIB, GPUS, ArbiterNode

pytestmark = pytest.mark.slow


async def test_a_process_outside_any_pod(node: ArbiterNode) -> None:
    stranger = await node.share(environment=False)
    assert await stranger("hello") == {"refused": "this process is not in a container of a pod"}


async def test_an_unknown_pod(node: ArbiterNode) -> None:
    process = await node.share("ghost")
    assert await process("hello") == {"refused": f"this node has no pod with the UID {named.uid('ghost')}"}


async def test_a_pod_without_an_allocation(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    node.pods[0]["metadata"]["annotations"] = {}
    process = await node.share()
    assert await process("hello") == {
        "refused": "the pod default/trainer has no allocation: it asks for no share of a GPU"
    }


async def test_a_pod_that_names_anothers_allocation(node: ArbiterNode) -> None:
    node.add_pod("trainer", holder="victim")
    process = await node.share()
    assert await process("hello") == {
        "refused": "the allocation of-trainer is held by default/victim, not by the pod default/trainer"
    }


async def test_a_container_without_a_share(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    node.pods[0]["status"]["containerStatuses"].append(
        {"name": "side", "containerID": f"containerd://{named.container_id('trainer', 'side')}"}
    )
    process = await node.share(container="side")
    assert await process("hello") == {"refused": "the container side of the pod default/trainer has no share of a GPU"}


async def test_the_api_server_is_asked_if_an_informer_lags(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    node.seen_pods, node.seen_allocations = [], []
    process = await node.share()
    assert await process("hello") == {"gpus": 1, "slot": 0}


async def test_an_unknown_allocation(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    node.allocations.clear()
    process = await node.share()
    assert await process("hello") == {
        "refused": "the allocation of-trainer of the pod default/trainer is not in this node's GPUNode"
    }


async def test_the_lookup_waits_until_the_pods_status_names_the_container(node: ArbiterNode) -> None:
    shares = (GivenShare(("main",), (GPUS[0],), 50, 100, GIB), GivenShare(("side",), (GPUS[1],), 20, 100, 2 * GIB))
    node.add_pod("trainer", *shares, statuses=False)
    process = await node.share(container="side")
    waiting = asyncio.create_task(process("hello"))
    while node.asked < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert not waiting.done()
    status = {"name": "side", "containerID": f"containerd://{named.container_id('trainer', 'side')}"}
    node.pods[0]["status"]["containerStatuses"] = [status]
    assert await waiting == {"gpus": 1, "slot": 0}
    assert (await process("limits"))["records"][0][1] == 2 * GIB


async def test_a_container_whose_name_never_comes(node: ArbiterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_shares, "WAIT_SECONDS", 0.8)
    shares = (GivenShare(("main",), (GPUS[0],), 50, 100, GIB), GivenShare(("side",), (GPUS[1],), 20, 100, 2 * GIB))
    node.add_pod("trainer", *shares, statuses=False)
    process = await node.share()
    answer = await process("hello")
    assert answer["refused"].startswith("the status of the pod default/trainer does not list the container ")


async def test_an_api_server_that_does_not_answer_is_waited_for_and_then_named(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_pod("trainer")
    node.seen_pods = []
    node.api_server_answers = False
    patient = await node.share()
    waiting = asyncio.create_task(patient("hello"))
    while node.asked < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    node.api_server_answers = True
    assert await waiting == {"gpus": 1, "slot": 0}

    node.api_server_answers = False
    monkeypatch.setattr(node_shares, "WAIT_SECONDS", 2.0)
    late = await node.share()
    answer = await late("hello")
    assert answer["refused"] == (
        f"this node has no pod with the UID {named.uid('trainer')}, and the request to the API server failed: "
        "it does not answer"
    )


async def test_many_waiting_lookups_ask_the_api_server_once(node: ArbiterNode) -> None:
    shares = await asyncio.gather(*(node.share("ghost") for _ in range(8)))
    await asyncio.gather(*(share("hello") for share in shares))
    assert node.asked < 8  # by how late the last of them is


async def test_all_waiting_lookups_get_the_reason_of_a_failed_request() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise api_errors.Unavailable("it does not answer")

    flight = node_shares.SingleFlight(fail, time.monotonic, min_interval_seconds=3600.0)
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*(flight.wait_for_answer() for _ in range(8)), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["it does not answer"] * 8


async def test_a_share_moved_to_other_gpus_is_refused_while_the_old_ones_are_used(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    first = await node.share()
    await first("hello")
    node.allocations.clear()
    node.pods.clear()
    node.add_pod("trainer", GivenShare(("main",), (GPUS[3],), 50, 100, GIB))
    two = await node.share()
    assert await two("hello") == {
        "refused": "the share is on other GPUs now: end all processes of the container that use the old ones"
    }
