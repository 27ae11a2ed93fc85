"""The agent restarts under living containers: nothing is lost, and nothing is given twice."""

from __future__ import annotations

import json

import pytest

from deviceplugin.arbiter import share_ledger
from deviceplugin.host import kernel_process
from tests.deviceplugin import waiting
from tests.deviceplugin.arbiter_node import ArbiterNode


async def restart(node: ArbiterNode) -> None:
    await node.stop()
    await node.start()


async def test_a_new_process_shares_the_ledger_of_earlier_ones(node: ArbiterNode) -> None:
    node.add_pod("trainer", gpus=2)
    first = await node.share()
    await first("hello")
    await first("charge", 1, 100)
    await restart(node)
    assert node.used() == (0, 100)
    two = await node.share()
    assert (await two("hello"))["slot"] == 1
    assert await two("sum", 1) == 100
    await two("charge", 1, 20)
    assert await first("sum", 1) == 120  # the earlier process, with its old limits page, counts the new one too


async def test_a_running_process_needs_no_agent(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    process = await node.share()
    await process("hello")
    await node.stop()
    await process("charge", 0, 100)
    assert await process("sum", 0) == 100
    await node.start()
    assert node.used() == (100,)


async def test_a_process_reconnects_to_its_own_slot(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    process = await node.share()
    await process("hello")
    await process("charge", 0, 100)
    await restart(node)
    await process("close")
    assert (await process("hello"))["slot"] == 0
    assert await process("sum", 0) == 100


async def test_a_process_that_died_while_no_agent_ran_is_cleared(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    first, two = await node.share(), await node.share()
    await first("hello")
    await two("hello")
    await first("charge", 0, 100)
    await two("charge", 0, 20)
    await node.stop()
    await first.kill()
    await node.start()
    assert node.used() == (20,)


@pytest.mark.slow
async def test_a_process_that_dies_after_the_restart_is_cleared(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    first, two = await node.share(), await node.share()
    await first("hello")
    await two("hello")
    await first("charge", 0, 100)
    await restart(node)
    await first.kill()
    await waiting.until(lambda: node.used() == (0,))
    assert await two("sum", 0) == 0


async def test_a_container_that_is_gone_leaves_no_record(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    process = await node.share()
    await process("hello")
    await node.stop()
    await process.kill()
    await node.start()
    assert node.used() is None
    assert list((node.directory / "state").iterdir()) == []


async def test_a_process_that_became_another_program_in_between_is_dropped(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    first, two = await node.share(), await node.share()
    await first("hello")
    await two("hello")
    await first("charge", 0, 100)
    await node.stop()
    await first("become")
    await node.start()
    assert node.used() == (0,)


async def test_a_process_whose_names_are_not_text_is_recovered(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    first, two = await node.share(), await node.share()
    await first("disguise", node.directory)
    assert (await first("hello"))["slot"] == 0
    await first("charge", 0, 100)
    who = kernel_process.with_start(first.pid)
    assert who is not None
    await restart(node)
    assert node.used() == (100,)
    await first("close")
    assert (await first("hello"))["slot"] == 0
    assert (await two("hello"))["slot"] == 1
    assert await two("sum", 0) == 100
    await first("become")
    await waiting.until(lambda: node.used() == (0,))


async def test_a_record_of_another_boot_is_ignored(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    process = await node.share()
    await process("hello")
    (path,) = (node.directory / "state").iterdir()
    await node.stop()
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))
    await node.start()
    assert node.used() is None
    assert not path.exists()


async def test_a_reused_pid_is_another_process(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    process = await node.share()
    await process("hello")
    await process("charge", 0, 100)
    (path,) = (node.directory / "state").iterdir()
    await node.stop()
    record = json.loads(path.read_text())
    record["slots"]["0"][1] += 1  # as if it had started later
    path.write_text(json.dumps(record))
    await node.start()
    assert node.used() is None


async def test_a_broken_record_is_dropped_and_harms_no_other(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    process = await node.share()
    await process("hello")
    await process("charge", 0, 100)
    await node.stop()
    broken = node.directory / "state" / "broken.json"
    broken.write_text('{"boot_id": ')
    await node.start()
    assert not broken.exists()
    assert node.used() == (100,)


async def test_after_a_restart_no_slot_beyond_the_old_slot_count_is_assigned(
    node: ArbiterNode,
) -> None:
    node.add_pod("trainer")
    first = await node.share()
    await first("hello")
    looked_at = (await first("limits"))["slots"]
    assert looked_at == share_ledger.FIRST_SLOT_COUNT
    (path,) = (node.directory / "state").iterdir()
    await node.stop()
    record = json.loads(path.read_text())
    # As if the container had a slot count of one, and this process had the slot.
    path.write_text(json.dumps({**record, "slot_count": 1}))
    await node.start()
    two = await node.share()
    answer = await two("hello")
    assert answer["refused"].startswith("the node's agent was restarted: until an earlier process ends, only 1 ")


async def test_an_unreachable_ledger_is_not_replaced_by_an_empty_one(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_pod("trainer")
    first = await node.share()
    await first("hello")
    await first("charge", 0, 100)
    await node.stop()
    with monkeypatch.context() as without_capabilities:
        without_capabilities.setattr(
            kernel_process, "mapping", lambda *_, **__: kernel_process.Mapping(known=False, link=None)
        )
        await node.start()
    two = await node.share()
    assert await two("hello") == {
        "refused": "the node's agent was restarted and cannot inspect this container's other processes (it lacks "
        "SYS_PTRACE or CHECKPOINT_RESTORE): restart the container"
    }
    await restart(node)  # now it has the capabilities
    assert node.used() == (100,)


async def test_an_unreachable_ledger_is_forgotten_with_its_last_process(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_pod("trainer")
    first = await node.share()
    await first("hello")
    await node.stop()
    monkeypatch.setattr(kernel_process, "mapping", lambda *_, **__: kernel_process.Mapping(known=False, link=None))
    await node.start()
    await first.kill()
    await waiting.until(lambda: not list((node.directory / "state").iterdir()))
    two = await node.share()
    assert (await two("hello"))["slot"] == 0


async def test_other_users_can_connect_to_the_socket_after_the_restart(node: ArbiterNode) -> None:
    await restart(node)
    assert node.socket.stat().st_mode & 0o777 == 0o666
    assert [path.name for path in node.socket.parent.iterdir()] == ["arbiter.sock"]
    await node.stop()
    assert list(node.socket.parent.iterdir()) == []
    await node.start()
