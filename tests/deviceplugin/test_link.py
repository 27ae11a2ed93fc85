"""The agent's end of the channel: its copy of the shares is correct, and it sends only changes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.arbiter import messages
from deviceplugin.arbiter.messages import Channel
from deviceplugin.host.kernel_process import Container
from deviceplugin.link import arbiter
from deviceplugin.link import arbiter as processes
from deviceplugin.link.arbiter import ArbiterError
from deviceplugin.link.node_shares import RunningShare
from gpushare import contract
from gpushare.allocation import GivenShare
from gpushare.gpunode import GpuNode, Resize
from tests.deviceplugin import arbiter_node, linked, named, waiting
from tests.deviceplugin.arbiter import lease_clients, test_hostility, test_versions
from tests.deviceplugin.arbiter_node import GIB, GPUS, ArbiterNode


@pytest.fixture
async def node(short_path: Path) -> Iterator[ArbiterNode]:
    async with arbiter_node.opened(short_path) as made:
        yield made


@pytest.fixture
async def link(node: ArbiterNode) -> Iterator[linked.Linked]:
    with linked.to(node, context_bytes=lambda uuid: 1000 + int(uuid[-1])) as made:
        yield made


async def same(node: ArbiterNode, link: linked.Linked) -> None:
    """Whether the agent has the same shares as the arbiter, in the same state."""
    await link.arbiter.report()
    theirs = {group.tenant.key: group for group in node.groups.all()}
    ours = {share.tenant.key: share for share in link.arbiter.shares.all()}
    assert ours.keys() == theirs.keys()
    for key, share in ours.items():
        other = theirs[key]
        assert share.tenant == other.tenant
        members = {slot: (who.pid, who.start_ticks) for slot, who in other.members.items()}
        assert {slot: (who.pid, who.start_ticks) for slot, who in share.members.items()} == members
        assert share.limits.read() == other.limits.read()
        assert share.ledger.device_inode == other.ledger.device_inode
    assert list(link.arbiter.shares.uses()) == list(node.groups.uses())


@pytest.mark.slow
async def test_the_agent_has_the_same_shares_as_the_arbiter(node: ArbiterNode, link: linked.Linked) -> None:
    node.add_pod("trainer", gpus=2)
    node.add_pod("server", memory=2 * GIB)
    await same(node, link)
    first, two, other = await node.share(), await node.share(), await node.share("server")
    for process in (first, two, other):
        await process("hello")
    await first("charge", 0, 100)
    await same(node, link)
    await two("charge", 1, 7)
    assert [use.used_bytes for use in link.arbiter.shares.uses()] == [(100, 7), (0,)]  # without a request
    node.change("server", memory_bytes=3 * GIB)
    await same(node, link)
    assert {share.tenant.memory_bytes for share in link.arbiter.shares.all()} == {GIB, 3 * GIB}
    await two.kill()
    await waiting.until(lambda: [len(group.members) for group in node.groups.all()] == [1, 1])
    await same(node, link)
    await first.kill()
    await waiting.until(lambda: len(node.groups.all()) == 1)
    # Another ledger of the same share, before the agent knows of the first one's end.
    again = await node.share()
    await again("hello")
    await again("charge", 0, 5)
    await same(node, link)
    assert sorted(use.used_bytes for use in link.arbiter.shares.uses()) == [(0,), (5, 0)]


async def test_nothing_is_lent_of_a_gpu_that_takes_no_shares(node: ArbiterNode, link: linked.Linked) -> None:
    node.gpu_bytes = 8 * GIB
    for name, gpu in (("trainer", GPUS[0]), ("other", GPUS[1])):
        node.add_pod(name, GivenShare(("main",), (gpu,), 10, 100, GIB, memory_limit_bytes=2 * GIB))

    async def limits(**fields: Any) -> list[int | None]:
        seen = node.seen_node()
        first, *others = seen.gpus
        await link.arbiter.apply(dataclasses.replace(seen, gpus=(dataclasses.replace(first, **fields), *others)))
        assert link.agent.node is not None
        return [entry.shares[0].memory_limit_bytes for entry in link.agent.node.allocations]

    assert await limits() == [2 * GIB, 2 * GIB]
    assert await limits(unowned=True) == [None, 2 * GIB]
    assert await limits(healthy=False) == [None, 2 * GIB]
    assert await limits() == [2 * GIB, 2 * GIB]


async def test_nothing_is_lent_while_an_allocation_is_invalid(node: ArbiterNode, link: linked.Linked) -> None:
    share = GivenShare(("main",), (GPUS[0],), 10, 100, GIB, memory_limit_bytes=2 * GIB)
    node.add_pod("trainer", share)

    async def limits(**fields: Any) -> list[int | None]:
        await link.arbiter.apply(dataclasses.replace(node.seen_node(), **fields))
        assert link.agent.node is not None
        return [entry.shares[0].memory_limit_bytes for entry in link.agent.node.allocations]

    assert await limits() == [2 * GIB]
    assert await limits(unread=({"id": "unknown"},)) == [None]
    assert await limits() == [2 * GIB]


async def test_the_arbiter_gets_the_sizes_of_a_shares_gpus(node: ArbiterNode, link: linked.Linked) -> None:
    node.add_pod("unsized")
    await (await node.share("unsized"))("hello")
    assert link.agent.gpu_bytes(GPUS[0]) == 0
    node.gpu_bytes = 4 * GIB
    node.add_pod("trainer", gpus=2)
    await (await node.share("trainer"))("hello")
    assert [link.agent.gpu_bytes(uuid) for uuid in GPUS[:3]] == [4 * GIB, 4 * GIB, 0]


async def test_the_agent_gets_the_lease_usage_of_shares(node: ArbiterNode, link: linked.Linked) -> None:
    node.add_pod("trainer")
    process = await node.share()
    assert not await link.arbiter.has_processes(GPUS[0])
    await process("hello")
    assert [await link.arbiter.has_processes(uuid) for uuid in GPUS[:2]] == [True, False]
    await process("turns", 3)
    await link.arbiter.report()
    assert list(link.arbiter.shares.lease_usage()) == []  # lease reports cost time, and were not requested
    await link.arbiter.report(turns=True)
    (had,) = link.arbiter.shares.lease_usage()
    (has,) = node.server.leases.usage()
    assert (had.tenant, had.gpu_uuid, had.leases) == (has.tenant, has.gpu_uuid, 3)
    assert 0 < had.had_seconds <= has.had_seconds
    assert (link.arbiter.reported.connections, dict(link.arbiter.reported.versions)) == (1, node.server.versions)
    await process.kill()
    await waiting.until(lambda: not node.server.connections)
    await link.arbiter.report(turns=True)
    assert list(link.arbiter.shares.lease_usage()) == []


async def test_overhead_is_charged_again_to_a_process_that_became_another_program(
    node: ArbiterNode, link: linked.Linked
) -> None:
    node.add_pod("trainer")
    process = await node.share()
    await process("hello")

    async def measured() -> list[list[int]]:
        await link.arbiter.report()
        (share,) = link.arbiter.shares.all()
        link.arbiter.publish_overheads(share, {slot: [300] for slot in share.members})
        link.arbiter.publish_context_bytes(grant.uuid for grant in share.tenant.grants)
        await link.arbiter.report()
        return [[limit.overhead_bytes, limit.context_bytes] for limit in share.limits.read()]

    assert await measured() == [[300, 1000]] == await measured()
    assert not link.agent.has_measured
    link.arbiter.publish_measured()
    await link.arbiter.report()
    assert link.agent.has_measured
    await process("become")
    await process("hello")
    assert await measured() == [[300, 1000]]


async def test_driver_activity_counts_in_the_arbiters_accounts(
    node: ArbiterNode, link: linked.Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = lease_clients.Node()
    monkeypatch.setattr(node.server, "leases", books.leases)
    stopped, other, running = books.client("a"), books.client("b"), books.client("c", gpus=("GPU-1",), limit=10)
    for client in (stopped, other, running):
        books.says(client, contract.MESSAGE_WANT)
    for _ in range(30):
        books.later(2000)
        link.arbiter.publish_activity({("GPU-0", "a-0"): False, ("GPU-1", "c-0"): True, ("gone", "a-0"): True})
        await link.arbiter.report()
    had = {usage.tenant.pod: usage.seconds for usage in books.leases.usage()}
    assert 10 < had["a"] < 15
    assert had["c"] == pytest.approx(60, abs=1)


async def test_the_pods_of_a_group_are_one_gang_in_the_arbiter(node: ArbiterNode, link: linked.Linked) -> None:
    for pod, gpu in (("rank0", GPUS[0]), ("rank1", GPUS[1])):
        node.add_pod(pod, GivenShare(("main",), (gpu,), 50, 100, GIB), group="ring")
        process = await node.share(pod)
        await process("hello")
    seats = {GPUS[number]: f"{named.uid(f'rank{number}')}-0" for number in range(2)}
    assert {name: gang.shares for name, gang in node.server.leases.gangs.by_name.items()} == {"default/ring": seats}
    await same(node, link)
    assert {share.tenant.group for share in link.arbiter.shares.all()} == {"default/ring"}


@pytest.mark.slow
async def test_unclaimed_memory_is_measured_with_the_members_at_that_moment(
    node: ArbiterNode, link: linked.Linked
) -> None:
    node.add_pod("trainer", gpus=2)
    first, two = await node.share(), await node.share()
    for process in (first, two):
        await process("hello")
    (group,) = node.groups.all()
    members = {member.pid: member for member in group.members.values()}
    looks: list[object] = []
    goes_on = asyncio.Event()

    async def look(share: RunningShare, asker: tuple[int, int], gpu: int) -> int | None:
        looks.append(([member.pid for member in share.members.values()], asker, gpu))
        assert share.used_bytes() == group.used_bytes()
        await goes_on.wait()
        return 1000 + gpu if gpu < 2 else None

    link.unclaimed_bytes = look
    asked = [asyncio.create_task(node.groups.measure(group, members[pid], gpu)) for gpu, pid in enumerate(members)]
    await waiting.until(lambda: len(looks) == 2)  # before any other report
    assert await node.groups.measure(group, members[first.pid], 0) is None  # one question per process at a time
    goes_on.set()
    assert await asyncio.gather(*asked) == [1000, 1001]
    pids = [first.pid, two.pid]
    assert looks == [(pids, (pid, members[pid].start_ticks), gpu) for gpu, pid in enumerate(pids)]
    goes_on.clear()
    gone = asyncio.create_task(node.groups.measure(group, members[first.pid], 0))
    await waiting.until(lambda: len(looks) == 3)
    gone.cancel()
    await asyncio.wait([gone])
    again = asyncio.create_task(node.groups.measure(group, members[first.pid], 1))
    await waiting.until(lambda: len(looks) == 4)
    goes_on.set()
    assert await again == 1001  # and not the answer to the previous question
    assert link.agent.measuring == {}
    assert await node.groups.measure(group, members[first.pid], 2) is None


async def test_a_library_of_another_protocol_is_reported_once_between_two_reports(
    node: ArbiterNode, link: linked.Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_pod("trainer")
    test_hostility.own_process(monkeypatch, node, "trainer")
    refusals: list[tuple[Container, str]] = []
    link.refused = lambda *what: refusals.append(what)
    for count in (1, 2):
        for _ in range(3):
            with contextlib.closing(await test_hostility.connect(node)) as client:
                client.send(test_versions.message(contract.MESSAGE_HELLO, 7, bytes(32), newest=9))
                _, _, body = await test_versions.heard(client)
        await link.arbiter.report()
        assert len(refusals) == count
    assert refusals[0] == refusals[1]
    container, sentence = refusals[0]
    assert container.pod_uid == named.uid("trainer")
    assert sentence == body.split(b"\0")[0].decode()


async def test_only_changes_of_the_gpunode_are_sent(
    node: ArbiterNode, link: linked.Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        node.add_pod(f"pod{number}")
    changes: list[messages.Message] = []
    send = link.ends[0].send
    monkeypatch.setattr(link.ends[0], "send", lambda message, *more: (changes.append(message), send(message, *more)))
    assert await link.arbiter.apply(node.gpunode()) == ()
    assert [type(message).__name__ for message in changes] == ["HasAllocation"] * 5 + ["ApplyAllocations"]
    changes.clear()
    node.allocations[1] = dataclasses.replace(node.allocations[1], latency=True)
    del node.allocations[3]
    assert await link.arbiter.apply(node.gpunode()) == ()
    assert changes == [
        messages.AllocationGone("of-pod3"),
        messages.HasAllocation(node.allocations[1]),
        messages.ApplyAllocations(()),
    ]
    assert link.agent.node is not None
    assert {allocation.id: allocation for allocation in link.agent.node.allocations} == {
        entry.id: entry for entry in node.allocations
    }


async def test_resizes_answer_each_gpunode(node: ArbiterNode, link: linked.Linked) -> None:
    node.add_pod("trainer", memory=400)
    node.add_pod("server", memory=400)
    process = await node.share()
    await process("hello")
    await process("charge", 0, 300)

    def shrinking(pod: str, to_bytes: int | None) -> GpuNode:
        node.resizing.close()
        share = dataclasses.replace(node.allocations[0 if pod == "trainer" else 1].shares[0], shrink_to_bytes=to_bytes)
        node.allocations = [
            dataclasses.replace(allocation, shares=(share,)) if allocation.id == f"of-{pod}" else allocation
            for allocation in node.allocations
        ]
        return node.gpunode()

    first, second = shrinking("trainer", 200), shrinking("server", 100)
    third = shrinking("trainer", None)
    answers = await asyncio.gather(*(link.arbiter.apply(gpunode) for gpunode in (first, second, third)))
    too_full, is_small = Resize("of-trainer", 0, 400, 300), Resize("of-server", 0, 100, 0)
    assert answers == [(too_full,), (is_small, too_full), (is_small,)]
    link.arbiter.refresh()  # the status has none of it yet
    await waiting.until(lambda: link.told == 1)


async def test_the_arbiter_gets_mig_devices_from_any_gpunode(node: ArbiterNode, link: linked.Linked) -> None:
    """The writer of the status has the GPUNode as it is stored, with the GPU that the device is on."""
    node.add_pod("trainer")
    (entry,) = node.allocations
    cut = dataclasses.replace(entry, shares=(dataclasses.replace(entry.shares[0], gpu_uuids=("MIG-1",)),))
    link.arbiter.lookup.as_devices = lambda known: dataclasses.replace(known, allocations=(cut,))
    assert await link.arbiter.apply(node.gpunode()) == ()
    assert link.agent.node is not None
    assert link.agent.node.allocations == (cut,)


@pytest.mark.slow
async def test_an_arbiter_that_stops_answering_is_given_up(node: ArbiterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arbiter, "REPORT_SECONDS", 0.01)
    ours, theirs = socket.socketpair()
    with contextlib.closing(Channel(ours)) as channel, theirs:
        made = arbiter.Arbiter(
            channel, lookup=node.lookup(), node=node.gpunode, tell=lambda: None, context_bytes=lambda _: 0
        )
        assert made.problem == "the arbiter is not ready yet"
        made.listening.set()
        with pytest.raises(ArbiterError, match="has not answered for 30 seconds"):
            await made.run()
        assert made.problem == "the arbiter has not answered for 30 seconds"


async def test_an_agent_that_fails_at_a_message_ignores_the_next_ones(
    link: linked.Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbiter, "REPORT_SECONDS", 0.05)
    link.ends[1].send(messages.ApplyAllocations(()))
    with pytest.raises(ArbiterError, match="the agent failed to handle a message of the arbiter"):
        await link.arbiter.run()


@pytest.mark.slow
async def test_an_arbiter_that_fails_at_a_message_ends(short_path: Path) -> None:
    async with processes.running(
        short_path / "arbiter.sock", ledgers=short_path / "ledgers", proc=Path("/proc"), log_level="info"
    ) as running:
        running.channel.send(messages.ArbiterReady())
        with pytest.raises(ArbiterError, match="has ended with exit code 1"):
            await asyncio.wait_for(running.watched(), 20)
