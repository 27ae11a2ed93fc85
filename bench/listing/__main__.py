"""A webhook replica's memory while it lists a large cluster, and the longest stall of its event loop.

Law: the peak of a list of N pods is at most c + N times the memory kept for one. A separate process fills a replica's
copies (pods, Nodes, PersistentVolumes, quotas, GPUNodes) from a server that streams lists like kube-apiserver, without
TLS: at the start, by a list after 410 without changes, and by one in which every pod has changed. The baseline decodes
each list in one piece, as most clients do, in the same run. With claims each pod mounts its own bound and attached
claim, on nodes with volume limits; with shares each pod has a share. Prints a table for people, then one JSON object a
line per figure.

Run: python -m bench.listing [--pods 2000 20000 100000] [--whole-up-to 20000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from typing import Any, Final

GOAL_STALL_MS: Final = 100
GOAL_READY_SECONDS: Final = 30
GOAL_MIB: Final = {20_000: 512, 100_000: 1024}

Found = dict[str, Any]


async def measured(count: int, *, is_whole: bool = False, having: str = "") -> list[Found]:
    """Return the stages of one replica."""
    command = [sys.executable, "-m", "bench.listing.cluster", str(count), having]
    server = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        port = int(await server.stdout.readline())
        command = [sys.executable, "-m", "bench.listing.replica", f"http://127.0.0.1:{port}", *["--whole"] * is_whole]
        replica = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        output, _ = await replica.communicate()
    finally:
        server.terminate()
        await server.wait()
    return [json.loads(line) for line in output.splitlines()]


def figures(count: int, way: str, stages: list[Found]) -> list[Found]:
    """Return one object per figure."""
    lines: list[Found] = []
    for stage in stages[1:]:
        name = f"listing.{way}.{count}.{stage['stage'].replace(', ', '-').replace(' ', '-')}"
        goal = GOAL_MIB.get(count)
        against: Found = {"against": "goal", "ratio": round(stage["peak_mib"] / goal, 2)} if goal else {}
        lines.append({"figure": f"{name}.peak", "value": stage["peak_mib"], "unit": "MiB", **against})
        per_pod = round((stage["peak_mib"] - stages[0]["left_mib"]) * 1024 / count, 1)
        lines.append({"figure": f"{name}.peak-of-a-pod", "value": per_pod, "unit": "KiB"})
        lines.append({"figure": f"{name}.left", "value": stage["left_mib"], "unit": "MiB"})
        ratio = round(stage["stall_ms"] / GOAL_STALL_MS, 2)
        lines.append(
            {"figure": f"{name}.stall", "value": stage["stall_ms"], "unit": "ms", "against": "goal", "ratio": ratio}
        )
        ratio = round(stage["seconds"] / GOAL_READY_SECONDS, 2)
        lines.append(
            {"figure": f"{name}.time", "value": stage["seconds"], "unit": "s", "against": "goal", "ratio": ratio}
        )
    return lines


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, nargs="+", default=[2_000, 20_000, 100_000])
    parser.add_argument("--whole-up-to", type=int, default=20_000, help="the baseline takes 50 KB a pod")
    asked = parser.parse_args()
    lines: list[Found] = []
    print(f"{'pods':>8} {'read':<16} {'stage':<25} {'peak MiB':>9} {'left MiB':>9} {'stall ms':>9} {'s':>7}")
    for count in asked.pods:
        for way in ("whole", "as it arrives", "with claims", "with shares"):
            if way == "whole" and count > asked.whole_up_to:
                continue
            stages = await measured(count, is_whole=way == "whole", having=way.rpartition("with ")[2])
            for stage in stages:
                print(
                    f"{count:>8} {way:<16} {stage['stage']:<25} {stage['peak_mib']:>9} {stage['left_mib']:>9} "
                    f"{stage['stall_ms']:>9} {stage['seconds']:>7}",
                    flush=True,
                )
            lines += figures(count, way.replace(" ", "-"), stages)
    print("\n".join(map(json.dumps, lines)))


if __name__ == "__main__":
    asyncio.run(main())
