"""Real clients of the real arbiter, and what it registers with the kernel."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deviceplugin.denial import kernel, program
from tests.deviceplugin import waiting
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.deviceplugin.denial import kernel_node


class Told:
    """The registered processes: start ticks by pid."""

    def __init__(self, descriptor: int) -> None:
        self._map = kernel.Map(descriptor, key_bytes=program.KEY.size, value_bytes=program.VALUE.size)

    def __call__(self) -> dict[int, int]:
        entries = {key: self._map.get(key) for key in self._map.every_key()}
        ticks = {program.KEY.unpack(key)[0]: program.VALUE.unpack(value)[0] for key, value in entries.items() if value}
        return {pid: when for pid, when in ticks.items() if pid != program.ARBITER_KEY}

    async def becomes(self, *pids: int) -> bool:
        await waiting.until(lambda: set(self()) == set(pids), seconds=20)
        return True


@pytest.fixture
def descriptor() -> Iterator[int]:
    """The map that the kernel reads."""
    kernel_node.hierarchy()
    made = kernel.make_registered_map()
    yield made
    os.close(made)


@pytest.fixture
async def node(short_path: Path, descriptor: int) -> AsyncIterator[tuple[ArbiterNode, Told]]:
    made = ArbiterNode(short_path)
    made.registered = kernel.RegisteredMap(descriptor)
    made.add_pod("trainer")
    await made.start()
    try:
        async with made.stack:
            yield made, Told(descriptor)
    finally:
        await made.stop()


async def test_a_process_is_registered_before_it_is_welcomed_and_until_it_ends(
    node: tuple[ArbiterNode, Told],
) -> None:
    arbiter, registry = node
    share = await arbiter.share()
    assert registry() == {}
    await share("hello")
    assert list(registry()) == [share.pid]
    assert registry()[share.pid] == arbiter.groups.all()[0].members[0].start_ticks
    await share.kill()
    assert await registry.becomes()


async def test_a_process_that_became_another_program_is_unregistered(node: tuple[ArbiterNode, Told]) -> None:
    arbiter, registry = node
    share = await arbiter.share()
    await share("hello")
    await share("become")
    assert await registry.becomes()
    await share("hello")
    assert await registry.becomes(share.pid)


async def test_the_next_arbiter_registers_exactly_the_living_processes(
    node: tuple[ArbiterNode, Told],
) -> None:
    arbiter, registry = node
    stays, ends = await arbiter.share(), await arbiter.share()
    await stays("hello")
    await ends("hello")
    await arbiter.stop()
    assert set(registry()) == {stays.pid, ends.pid}  # no running process loses its GPU meanwhile
    await ends.kill()
    await arbiter.start()
    assert set(registry()) == {stays.pid}


async def test_a_process_that_the_kernel_cannot_register_is_refused(
    node: tuple[ArbiterNode, Told], descriptor: int
) -> None:
    arbiter, _ = node
    no_map = os.open("/dev/null", os.O_RDONLY)
    os.dup2(no_map, descriptor)
    os.close(no_map)
    share = await arbiter.share()
    answer = await share("hello")
    assert "the kernel did not register this process" in answer["refused"]
