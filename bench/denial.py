"""The cost of a kernel check on every open of a device file, and of the alternatives, with real cgroups and processes.

A process in a pod's cgroup opens and closes a device file: /dev/loop-control, under the name of a driver's file. It
does so without a BPF program, as a registered process and as an unregistered one; and it opens a file that the program
does not cover. The figures are CPU time, which a busy machine does not stretch, and are compared within a round. The
benchmark then measures how long the arbiter takes to unregister a process that ran another program (exec), and how
often such a process opened the device before that, because the kernel does not wait for the arbiter. Last, it counts
the questions of fanotify, which was the alternative.

Prints a table for people, then one JSON object a line per figure. Needs root and cgroup v2.

Run: python -m bench.denial [--opens 20000] [--rounds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import select
import statistics
import struct
import tempfile
import threading
import time
from pathlib import Path

from deviceplugin.denial import kernel, program
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.deviceplugin.denial import kernel_node
from tests.deviceplugin.denial.kernel_node import KernelNode, Process

EXECS, OPENS = 30, 100
NOTHING, OTHER, OTHER_NOTHING = "no program", "another file", "another file, no program"
_FAN_CLASS_CONTENT, _FAN_CLOEXEC, _FAN_MARK_ADD, _FAN_OPEN_PERM, _FAN_ALLOW = 4, 1, 1, 0x10000, 1
_EVENT = struct.Struct("=IBBHQii")
_libc = ctypes.CDLL(None, use_errno=True)


class Fanotify:
    """A thread that allows every open of a file, and counts them, until closed."""

    def __init__(self, path: Path) -> None:
        self.asked = 0
        self._group = _libc.fanotify_init(_FAN_CLASS_CONTENT | _FAN_CLOEXEC, os.O_RDONLY)
        flags, mask = ctypes.c_uint(_FAN_MARK_ADD), ctypes.c_uint64(_FAN_OPEN_PERM)
        if self._group < 0 or _libc.fanotify_mark(self._group, flags, mask, -100, bytes(path)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._ends, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self._ends not in select.select([self._group, self._ends], [], [])[0]:
            data = os.read(self._group, 4096)
            for at in range(0, len(data), _EVENT.size):
                descriptor = _EVENT.unpack_from(data, at)[5]
                os.write(self._group, struct.pack("=iI", descriptor, _FAN_ALLOW))
                os.close(descriptor)
                self.asked += 1

    def close(self) -> None:
        os.write(self._end, b"x")
        self._thread.join()
        for descriptor in (self._group, self._ends, self._end):
            os.close(descriptor)


def costs(node: KernelNode, count: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return, by case, the microseconds of an open and close, and the difference to no program in the same round.

    Both are medians over the rounds.
    """
    known = node.enforced()
    free, mine, stranger = node.process(covered=False), node.process(), node.process()
    known.add(*mine.who)
    cases: dict[str, tuple[Process, Path]] = {
        NOTHING: (free, node.device),
        "registered": (mine, node.device),
        "denied": (stranger, node.device),
        OTHER_NOTHING: (free, Path("/dev/null")),
        OTHER: (mine, Path("/dev/null")),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (process, path) in cases.items():
            times[name].append(float(process.ask("time", path, count)))
    more = {name: [a - b for a, b in zip(took, times[_base(name)], strict=True)] for name, took in times.items()}
    return {name: (statistics.median(took), statistics.median(more[name])) for name, took in times.items()}


def _base(name: str) -> str:
    return OTHER_NOTHING if name in {OTHER, OTHER_NOTHING} else NOTHING


async def strikes(directory: Path) -> list[float]:
    """Return, for each process, the milliseconds from its exec until the arbiter has unregistered it."""
    descriptor = kernel.make_registered_map()
    entries = kernel.Map(descriptor, key_bytes=program.KEY.size, value_bytes=program.VALUE.size)
    arbiter = ArbiterNode(directory)
    arbiter.registered = kernel.RegisteredMap(descriptor)
    arbiter.add_pod("trainer")
    await arbiter.start()
    delays = []
    async with arbiter.stack:
        for _ in range(EXECS):
            share = await arbiter.share()
            await share("hello")
            assert share.process.stdin is not None
            share.process.stdin.write(b"become\n")
            begun = time.perf_counter()
            while entries.get(program.KEY.pack(share.pid)) is not None:  # noqa: ASYNC110 - nothing tells us
                await asyncio.sleep(0)
            delays.append((time.perf_counter() - begun) * 1e3)
            await share.kill()
    await arbiter.stop()
    os.close(descriptor)
    return delays


def leaks(node: KernelNode) -> int:
    """Return how many processes open the device after an exec while they are still registered."""
    known = node.enforced()
    got = 0
    for _ in range(EXECS):
        process = node.process()
        known.add(*process.who)
        assert process.ask("open", node.device) == "yes"
        assert process.ask("become") == "ready"
        got += process.ask("open", node.device) == "yes"
        process.end()
    return got


def asked(node: KernelNode) -> dict[str, int]:
    """Return, by kind of file, how often fanotify asks during a hundred opens."""
    plain = node.device.with_name("plain")
    plain.touch()
    process = node.process(covered=False)
    counts = {}
    for name, path in (("a device file", node.device), ("a plain file", plain)):
        watch = Fanotify(path)
        process.ask("time", path, OPENS)
        watch.close()
        counts[name] = watch.asked
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opens", type=int, default=20_000, help="for each case and round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="(%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="d") as directory, kernel_node.opened(Path(directory)) as node:
        costing = costs(node, options.opens, options.rounds)
        got = leaks(node)
        by_fanotify = asked(node)
        (Path(directory) / "a").mkdir()
        struck = asyncio.run(strikes(Path(directory) / "a"))
    print(f"an open in µs, and the difference to no program; medians of {options.rounds} rounds of {options.opens}")
    for name, (took, more) in costing.items():
        print(f"  {name:<26} {took:8.2f} {more:+8.2f}")
    print(f"after exec: {got} of {EXECS} opened the device; unregistered by the arbiter after, ms: ", end="")
    print(f"median {statistics.median(struck):.1f}, longest {max(struck):.1f}")
    print(
        f"questions of fanotify at {OPENS} opens of each: "
        + ", ".join(f"{name} {n}" for name, n in by_fanotify.items())
    )
    for name, (took, more) in costing.items():
        figure = {
            "figure": f"denial.open.{name.replace(', ', '.').replace(' ', '-')}",
            "value": round(took, 3),
            "unit": "us",
        }
        ratio = round(1 + more / costing[_base(name)][0], 3)
        print(json.dumps({**figure, "against": _base(name), "ratio": ratio}))
    figure = {"figure": "denial.struck-out.p50", "value": round(statistics.median(struck), 2), "unit": "ms"}
    print(json.dumps({**figure, "against": "kernel, at once", "ratio": None}))
    print(
        json.dumps(
            {"figure": "denial.after-exec", "value": got, "unit": f"of {EXECS}", "against": "goal", "ratio": got}
        )
    )


if __name__ == "__main__":
    main()
