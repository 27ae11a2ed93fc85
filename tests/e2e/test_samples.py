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
RUNNING = sorted(path.stem for path in SAMPLES.glob("*.yaml") if path.stem not in {"busy", "ten-quarters", "waits"})


@pytest.mark.parametrize("sample", RUNNING)
def test_each_sample_runs(user: Observer, sample: str) -> None:
    path = SAMPLES / f"{sample}.yaml"
    user.apply(str(path))
    for document in yaml.safe_load_all(path.read_text()):
        pod = user.running(document["metadata"]["name"])
        assert annotation(pod, contract.GPU_UUIDS)
    user.delete("pods", "--all")
    user.ledger_is_empty()


def test_usage_and_limits_of_two_busy_pods_are_shown(user: Observer) -> None:
    user.apply(str(SAMPLES / "busy.yaml"))
    large, small = (annotation(user.running(name), contract.GPU_UUIDS) for name in ("busy-large", "busy-small"))
    assert large == small

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
        lambda: "2 of 2 containers limited" in user.plugin_run("audit", check=False).stdout,
        what="both containers limited in `audit`",
    )
    suggested = user.plugin("rightsize", "--min-observed=1s", "-o", "commands", "--namespace", user.namespace)
    commands = {line.split()[3]: line.split()[2:] for line in suggested.splitlines()}
    assert {name: words[-1] for name, words in commands.items()} == {"busy-large": "2560Mi", "busy-small": "2560Mi"}
    user.plugin(*commands["busy-small"])

    def resized() -> bool:
        held = {entry.pod.name: entry.shares[0].memory_bytes for entry in user.gpunode().allocations}
        return held["busy-small"] == 2560 << 20 < held["busy-large"]

    eventually(resized, what="the memory that was suggested")
    user.delete("pods", "--all")
    user.ledger_is_empty()


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
    for name in jobs:
        user.kubectl("wait", "--for=condition=complete", f"job/{name}", "--timeout=60s")
    user.kubectl("delete", "-f", str(SAMPLES / "workloads"), "--grace-period=1", "--timeout=60s")
    user.ledger_is_empty()


def test_the_rejected_sample_is_rejected_and_the_waiting_one_waits(user: Observer) -> None:
    user.apply(str(SAMPLES / "half-gpu.yaml"))
    assert "is more than one GPU: write 0 to 1 in steps of 0.01" in user.refused(
        str(SAMPLES / "refused" / "too-much.yaml")
    )
    user.apply(str(SAMPLES / "waits.yaml"))
    waiting = user.pod("waits")
    assert waiting is not None
    assert "no GPU fits 4 GPUs" in annotation(waiting, contract.REASON)
    user.delete("pod", "half-gpu")
    assert len(annotation(user.running("waits"), contract.GPU_UUIDS).split(",")) == 4
    user.delete("pods", "--all")
    user.ledger_is_empty()
