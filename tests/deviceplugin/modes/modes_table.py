"""All pairs of modes, with an event in between. Run as a program: GPUS DIRECTORY EVENT.

Afterwards the driver shows what the configuration wants, the published state agrees with it, and nothing of the
previous mode is left; or the GPUs are closed, with a reason.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from tests import builders
from tests.deviceplugin import simulated
from tests.deviceplugin.modes.modes_node import CONFIGS, GPU, DiedError, Node, running

Event = Callable[[Node, str, str], Awaitable[None]]
HELD: Final = 1  # index of the GPU that a pod uses
LOST: Final = 2  # index of the GPU that fails


def check(value: object, expected: object, what: str) -> None:
    """Raise AssertionError with both values."""
    assert value == expected, f"{what}: {value}, not {expected}"


def is_used_as(node: Node, mode: str) -> None:
    """Check that all GPUs have this mode, in the driver and in the published state."""
    check(node.modes, [mode] * len(node.uuids), "told")
    check(node.facts(), node.used_as(mode), "the driver's")
    check(node.pending, "", "pending")
    check({gpu.pending_mode for gpu in node.gpus_with_modes.gpus}, {None}, "closed")


async def _nothing(node: Node, before: str, after: str) -> None:
    await node.reach(after)


async def _restart(node: Node, before: str, after: str) -> None:
    node.cluster.label = after
    await node.end()
    node.start()
    await node.step()


async def _replaced(node: Node, before: str, after: str) -> None:
    """The next agent has no checkpoint, so it sees the state of the GPUs as another program's work."""
    await node.end()
    node.forget()
    node.start()
    await node.reach(after)
    if before == "mig" and after in {"fractional", "time-slicing", "mps"}:
        # The owner of the MIG devices is unknown and may still need them. So the GPUs stay closed until the
        # configuration disables MIG.
        check(node.modes, [f"{after}…"] * len(node.uuids), "told")
        assert node.pending.count("it is in MIG mode with 2 × 3g.20gb, and a program can use only one of these") == 4
        assert sum("GpuSetAside" in line for line in node.cluster.told) == 4, node.cluster.told
        assert not any(device.healthy for devices in node.advertised.value.values() for device in devices)
        node.cluster.entries[after] += "mig: all-disabled\n"
        await node.step()
    elif before == "mig" and after == "exclusive":
        check(node.facts(), node.used_as("mig"), "left as it was cut, and offered whole as NVIDIA's strategy none does")
        node.cluster.entries[after] += "mig: all-disabled\n"
        await node.step()


async def _dies(node: Node, before: str, after: str, *, at: str) -> None:
    node.cluster.label = after
    node.deadly.at = at
    try:
        await node.step()
    except DiedError:
        await node.end()
        node.deadly.at = ""
        node.start()
    else:
        check(before, after, "it did not die, so nothing had to be done")
    node.deadly.at = ""
    await node.step()


async def _held(node: Node, before: str, after: str) -> None:
    uuid = node.uuids[HELD]
    if before == "fractional":
        entry = builders.allocation("a1", uuid)
        assert node.cluster.node is not None
        node.cluster.node = dataclasses.replace(node.cluster.node, allocations=(entry,))
    else:
        held = {"exclusive": uuid, "mig": node.mig.mig_devices(uuid)[0].uuid if before == "mig" else ""}
        node.kubelet.pods["train"] = (GPU, [held.get(before, f"{uuid}::0")])
    facts = node.facts()
    for again in (False, True):
        if again:
            await node.end()
            node.start()
        await node.reach(after)
        for name, values in node.facts().items():
            check(values[HELD], facts[name][HELD], f"{name} of the GPU in use")
            check(values[0], node.used_as(after)[name][0], f"{name} of the others")
        if before != after:
            check(node.modes[HELD], f"{before}…", "told")
            assert "once it is not used any more by pod " in node.pending, node.pending
    node.kubelet.pods.clear()
    assert node.cluster.node is not None
    node.cluster.node = dataclasses.replace(node.cluster.node, allocations=())
    await node.step()


async def _lost(node: Node, before: str, after: str) -> None:
    """A GPU falls off the bus, is reset and comes back while its mode has to change."""
    await simulated.change("fail", node.gpus, str(LOST), "lost")
    await node.reach(after)
    modes = [mode for index, mode in enumerate(node.modes) if index != LOST]
    check(modes, [after] * 3, "told of the others")
    assert not node.gpus_with_modes.gpus[LOST].healthy
    await simulated.change("heal", node.gpus, str(LOST))
    await simulated.change("reset", node.gpus, str(LOST))
    await node.step()


async def _reset(node: Node, before: str, after: str) -> None:
    """An administrator undoes the setup by hand, before and after the change."""
    for mode in (before, after):
        await node.reach(mode)
        for index, uuid in enumerate(node.uuids):
            node.cut(index, enabled=False)
            await node.exclusive(uuid, mode != "mps")
        await node.step()
        if mode == "mps":
            # The daemon runs on, although other processes can use its GPU now.
            check(node.facts()["compute"], ["DEFAULT"] * 4, "the driver's")
            for uuid in node.uuids:
                await node.exclusive(uuid, True)
            await node.step()
        is_used_as(node, mode)


EVENTS: Final[dict[str, Event]] = {
    "nothing": _nothing,
    "restarted": _restart,
    "replaced": _replaced,
    "dies-leaving": lambda *arguments: _dies(*arguments, at="tear_down"),
    "dies-entering": lambda *arguments: _dies(*arguments, at="set_up"),
    "held": _held,
    "lost": _lost,
    "reset": _reset,
}


async def main(gpus: Path, directory: Path, event: str) -> int:
    """Run all pairs with this event in between; return how many failed."""
    wrong = 0
    for before, after in itertools.product(CONFIGS, CONFIGS):
        async with running(gpus, directory) as node:
            try:
                await node.reach(before)
                is_used_as(node, before)
                await EVENTS[event](node, before, after)
                is_used_as(node, after)
            except AssertionError as error:
                wrong += 1
                sys.stdout.write(f"{before} to {after}: {error}; {node.pending}\n")
    return wrong


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])))
