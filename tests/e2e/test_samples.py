"""Every sample does what its comment says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gpushare import contract
from tests.e2e.observation import Observer, annotation, eventually

pytestmark = pytest.mark.lab

SAMPLES = Path("config/samples")
# Together these fit the lab's four GPUs in this order; the two that need most run beside the busy pods.
FIRST = ("whole-gpu", "exclusion", "apart", "half-gpu", "burst", "by-model", "quarter-memory", "memory-only")
BESIDE_BUSY = ("two-gpus", "two-containers")


def test_each_sample_is_tested() -> None:
    assert {path.stem for path in SAMPLES.glob("*.yaml")} == {*FIRST, *BESIDE_BUSY, "busy", "ten-quarters", "waits"}


def apply(user: Observer, *samples: str) -> None:
    user.kubectl("apply", *(f"--filename={SAMPLES / sample}.yaml" for sample in samples))


def run(user: Observer, *samples: str) -> dict[str, list[str]]:
    """Wait until all pods of these samples run; return their GPUs, by pod."""
    names = [
        document["metadata"]["name"]
        for sample in samples
        for document in yaml.safe_load_all((SAMPLES / f"{sample}.yaml").read_text())
    ]
    return {name: annotation(user.running(name), contract.GPU_UUIDS).split(",") for name in names}


def test_samples_run_beside_each_other_and_the_one_that_needs_all_gpus_waits(user: Observer) -> None:
    assert "is more than one GPU: write 0 to 1 in steps of 0.01" in user.refused(
        str(SAMPLES / "refused" / "too-much.yaml")
    )
    apply(user, *FIRST, "waits")
    gpus = {name: uuid for name, (uuid,) in run(user, *FIRST).items()}
    assert all(gpus.values())
    assert gpus["apart-1"] != gpus["apart-2"]
    for alone in ("exclusion", "whole-gpu"):
        assert [name for name, uuid in gpus.items() if uuid == gpus[alone]] == [alone]
    waiting = user.pod("waits")
    assert waiting is not None
    assert "no GPU fits 4 GPUs" in annotation(waiting, contract.REASON)
    user.delete("pods", *gpus)
    assert len(annotation(user.running("waits"), contract.GPU_UUIDS).split(",")) == 4


def test_usage_and_limits_of_two_busy_pods_are_shown(user: Observer) -> None:
    apply(user, "busy", *BESIDE_BUSY)
    gpus = run(user, "busy", *BESIDE_BUSY)
    assert len({*gpus["two-gpus"]}) == 2
    assert gpus["two-containers"][0]
    assert gpus["busy-large"] == gpus["busy-small"]

    def busy() -> dict[str, float] | None:
        rows = [line.split() for line in user.plugin("top", "pods", "--namespace", user.namespace).splitlines()]
        header, pods = rows[0], {row[0]: row for row in rows[1:] if row[0].startswith("busy-")}
        used, gpus = header.index("USED"), header.index("BUSY")
        if any(row[used] != "2Gi" or not row[gpus].endswith("/1") for row in pods.values()):
            return None
        shares = {name: float(row[gpus].removesuffix("/1")) for name, row in pods.items()}
        return shares if shares["busy-large"] > shares["busy-small"] > 0 else None

    eventually(busy, what="what both use in `top pods`, the larger share more")
    # The agent audits every two seconds, and `top` shows more frequent measurements. `audit` exits with 1 or 2
    # while something is uncertain.
    eventually(
        lambda: (
            "2 of 2 containers limited on 1 node; 3 containers with nothing on a GPU"
            in user.plugin_run("audit", check=False).stdout
        ),
        what="both containers limited in `audit`",
    )
    suggested = user.plugin("rightsize", "--min-observed=1s", "-o", "commands", "--namespace", user.namespace)
    commands = {line.split()[3]: line.split()[2:] for line in suggested.splitlines() if " busy-" in line}
    assert {name: words[-1] for name, words in commands.items()} == {"busy-large": "2560Mi", "busy-small": "2560Mi"}
    user.plugin(*commands["busy-small"])

    def resized() -> bool:
        held = {entry.pod.name: entry.shares[0].memory_bytes for entry in user.gpunode().allocations}
        return held["busy-small"] == 2560 << 20 < held["busy-large"]

    eventually(resized, what="the memory that was suggested")


def test_the_sample_workloads_run_side_by_side(user: Observer) -> None:
    user.apply(str(SAMPLES / "workloads"))

    def held(selector: str, count: int) -> Callable[[], set[str] | None]:
        """Return the GPUs of a workload's pods, once that many run or have completed."""

        def look() -> set[str] | None:
            pods = user.pods(selector)
            begun = [pod for pod in pods if pod["status"]["phase"] in {"Running", "Succeeded"}]
            gpus = {annotation(pod, contract.GPU_UUIDS) for pod in begun}
            return gpus if len(begun) == len(pods) == count and "" not in gpus else None

        return look

    assert annotation(user.running("notebook"), contract.GPU_UUIDS)
    jobs = {"gang": 2, "training": 1, "idle-compute": 1}
    selectors = {f"job-name={name}": count for name, count in jobs.items()} | {"app=shard": 2, "app=service": 2}
    gpus = {
        selector: eventually(held(selector, count), seconds=60, what=f"{count} pods of {selector} with a share")
        for selector, count in selectors.items()
    }
    assert len(gpus["job-name=gang"]) == 2

    def succeeded() -> dict[str, int]:
        """Return how many pods of each Job have completed."""
        listed = user.access.read(f"/apis/batch/v1/namespaces/{user.namespace}/jobs")["items"]
        return {job["metadata"]["name"]: job["status"].get("succeeded", 0) for job in listed}

    eventually(lambda: succeeded() == jobs, seconds=60, what="all Jobs complete")
