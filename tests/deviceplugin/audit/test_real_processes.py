"""Contexts are charged, and processes that bypass the library are found."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deviceplugin.audit.conftest import CONTEXT, LIMIT, MIB, AuditNode
from tests.deviceplugin.audit.programs import launching

pytestmark = pytest.mark.slow


def beyond(figures: str) -> float:
    (line,) = [line for line in figures.splitlines() if line.startswith("gpushare_share_beyond_limit_memory")]
    return float(line.split()[-1])


def process(report: Any, pid: int) -> Any:
    return next(process for gpu in report["audit"]["gpus"] for process in gpu["processes"] if process["pid"] == pid)


def condition(report: Any) -> tuple[str, str, str]:
    (entry,) = report["conditions"]
    assert entry["type"] == "LimitsInForce"
    return entry["status"], entry["reason"], entry["message"]


def test_context_is_charged_after_the_second_audit(start: Callable[..., AuditNode]) -> None:
    node = start()
    client = node.client("trainer")
    assert node.audit(1)["audit"]["shares"][0]["overheadBytes"] == 0
    report = node.audit(1)
    (share,) = report["audit"]["shares"]
    assert (share["chargedBytes"], share["overheadBytes"]) == (0, CONTEXT)
    assert (share["enforcedBytes"], share["processes"], share["withLibrary"]) == (LIMIT, 1, 1)
    assert share["inForce"], share["reason"]
    assert process(report, client.pid)["state"] == "limited"
    assert condition(report)[:2] == ("True", "Audited")
    assert client("c.info()") == str((LIMIT - CONTEXT, LIMIT))
    assert client(f"c.allocate({LIMIT - CONTEXT + 1})[0]") == "2"
    assert client(f"c.allocate({LIMIT - CONTEXT})[0]") == "0"
    report = node.audit()
    assert report["audit"]["shares"][0]["chargedBytes"] == LIMIT - CONTEXT
    assert report["audit"]["shares"][0]["overheadBytes"] == CONTEXT


def test_dead_process_frees_its_overhead_immediately(start: Callable[..., AuditNode]) -> None:
    node = start()
    clients = [node.client("trainer") for _ in range(2)]
    node.audit()
    assert clients[0]("c.info()") == str((LIMIT - 2 * CONTEXT, LIMIT))
    os.kill(clients[1].pid, signal.SIGKILL)
    clients[1].process.wait(10)
    node("look")
    assert clients[0]("c.info()") == str((LIMIT - CONTEXT, LIMIT))


def test_learned_context_size_is_charged_in_advance(start: Callable[..., AuditNode]) -> None:
    node = start(pods={"trainer": (LIMIT, 0), "second": (LIMIT, 0), "small": (CONTEXT - MIB, 0)})
    node.client("trainer")
    node.audit(2)
    assert node("context 0") == 0
    node.audit(1)
    assert node("context 0") == CONTEXT
    second = node.client("second")
    assert second("c.info()") == str((LIMIT - CONTEXT, LIMIT))
    shares = {share["pod"]: share for share in node.audit()["audit"]["shares"]}
    charged = {pod: (share["chargedBytes"], share["overheadBytes"]) for pod, share in shares.items()}
    assert charged == {"trainer": (0, CONTEXT), "second": (CONTEXT, 0), "small": (0, 0)}
    refused = node.failing("small")
    assert "cuDevicePrimaryCtxRetain: 2" in refused
    assert "gpushare: no memory for a CUDA context: it needs about 300 MiB on this GPU" in refused


def test_constant_changes_leave_no_wrong_overhead(start: Callable[..., AuditNode]) -> None:
    node = start()
    client = node.client("trainer")
    client.begin(f"[c.free(c.allocate({64 * MIB})[1]) for _ in range(3000)][0]")
    seen = [node.audit(1)["audit"]["shares"][0]["overheadBytes"] for _ in range(20)]
    assert client.read() == "0"
    assert all(0 <= overhead <= CONTEXT + 64 * MIB for overhead in seen)
    assert node.audit(2)["audit"]["shares"][0]["overheadBytes"] == CONTEXT
    assert client("c.info()") == str((LIMIT - CONTEXT, LIMIT))


def test_next_agent_keeps_learned_sizes_and_measures_again(start: Callable[..., AuditNode]) -> None:
    node = start()
    client = node.client("trainer")
    node.audit(3)
    node.asked.process.kill()
    node.asked.process.wait(10)
    after = start()
    assert after("context 0") == CONTEXT
    report = after.audit()
    assert process(report, client.pid)["state"] == "limited"
    assert report["audit"]["shares"][0]["overheadBytes"] == CONTEXT
    later = after.client("trainer")
    assert after.audit()["audit"]["shares"][0]["chargedBytes"] == CONTEXT  # of the later process
    assert later("c.info()") == str((LIMIT - 2 * CONTEXT, LIMIT))


def test_reports_contexts_that_exceed_a_limit(start: Callable[..., AuditNode]) -> None:
    node = start(pods={"trainer": (CONTEXT + MIB, 0)})
    client = node.client("trainer")
    assert client(f"c.allocate({CONTEXT})[0]") == "0"
    (share,) = node.audit()["audit"]["shares"]
    assert (share["chargedBytes"], share["overheadBytes"]) == (CONTEXT, CONTEXT)
    assert share["inForce"]
    assert share["reason"].startswith("including contexts, it exceeds its limit by 299Mi")
    assert client("c.info()") == str((0, CONTEXT + MIB))
    assert client("c.allocate(1)[0]") == "2"
    assert beyond(node("figures")) == CONTEXT - MIB


def test_reports_a_program_without_the_library_at_the_second_audit(start: Callable[..., AuditNode]) -> None:
    node = start(pods={"trainer": (LIMIT, 0), "sneaky": (LIMIT, 0)})
    node.client("trainer")
    sneaky = node.client("sneaky", preload=())
    first = node.audit(1)
    assert (process(first, sneaky.pid)["state"], first["events"]) == ("unjudged", [])
    assert condition(first)[0] == "True"
    report = node.audit(1)
    seen = process(report, sneaky.pid)
    assert (seen["state"], seen["pod"], seen["container"], seen["usedBytes"]) == (
        "unlimited",
        "sneaky",
        "main",
        CONTEXT,
    )
    assert "the library is not loaded" in seen["reason"]
    assert [event[0] for event in report["events"]] == ["RunsUnlimited"]
    assert report["events"][0][2] == "default/sneaky"
    status, reason, message = condition(report)
    assert (status, reason) == ("False", "ProcessUnlimited")
    assert f"process {sneaky.pid}) of the pod default/sneaky runs without limits on GPU 0" in message
    shares = {share["pod"]: share for share in report["audit"]["shares"]}
    assert not shares["sneaky"]["inForce"]
    assert shares["trainer"]["inForce"]
    assert node.audit(1)["events"] == []  # each finding is reported once
    assert 'gpushare_gpu_unlimited_processes{gpu="' in node("figures")
    sneaky.process.kill()
    sneaky.process.wait(10)
    assert condition(node.audit(1))[0] == "True"


def test_process_of_no_share_is_foreign_only_on_a_fractional_gpu(start: Callable[..., AuditNode]) -> None:
    node = start()
    stranger = node.client("", preload=())
    report = node.audit()
    assert process(report, stranger.pid)["state"] == "foreign"
    assert condition(report)[:2] == ("False", "ForeignProcess")
    node("mode 0 exclusive")
    report = node.audit()
    assert process(report, stranger.pid)["state"] == "unjudged"
    assert condition(report)[0] == "True"


def test_kills_only_the_process_that_bypassed_its_limits(start: Callable[..., AuditNode]) -> None:
    node = start("end", pods={"trainer": (LIMIT, 0), "sneaky": (LIMIT, 0)})
    limited, stranger = node.client("trainer"), node.client("", preload=())
    sneaky = node.client("sneaky", preload=())
    report = node.audit()
    assert sneaky.process.wait(10) == -signal.SIGKILL
    assert any("it was killed because of --end-unlimited" in event[1] for event in report["events"])
    assert node.audit()["events"] == []
    assert limited.process.poll() is None
    assert stranger.process.poll() is None


def test_reports_limits_that_differ_from_the_gpunode(start: Callable[..., AuditNode]) -> None:
    node = start()
    node.client("trainer")
    node.audit()
    node(f"limits trainer {2 * LIMIT}")
    assert node.audit(1)["audit"]["shares"][0]["inForce"]  # the arbiter may be about to write them
    report = node.audit(1)
    (share,) = report["audit"]["shares"]
    assert (share["inForce"], share["limitBytes"], share["enforcedBytes"]) == (False, 2 * LIMIT, LIMIT)
    assert "run with a request of 50%, a limit of 100% and 1Gi of memory" in share["reason"]
    assert condition(report)[:2] == ("False", "LimitsDiffer")


def test_orphaned_process_is_reported_but_not_killed(start: Callable[..., AuditNode], short_path: Path) -> None:
    first = start("end", pods={"trainer": (LIMIT, 0), "sneaky": (LIMIT, 0)})
    client = first.client("trainer")
    sneaky = first.client("sneaky", preload=())
    assert first.audit(1)["events"] == []
    first.asked.process.kill()
    first.asked.process.wait(10)
    os.kill(client.pid, signal.SIGSTOP)  # it cannot find the next agent
    shutil.rmtree(short_path / "state")
    after = start("end", pods={"trainer": (LIMIT, 0), "sneaky": (LIMIT, 0)})
    report = after.audit()
    assert sneaky.process.wait(10) == -signal.SIGKILL
    assert process(report, client.pid)["state"] == "unlimited"
    assert "restart its container" in process(report, client.pid)["reason"]
    after.audit()
    assert client.process.poll() is None
    os.kill(client.pid, signal.SIGCONT)
    assert client("1") == "1"


def audits_of(node: AuditNode, count: int) -> Iterator[Any]:
    """Audit once a second, because the driver needs time to sample."""
    for _ in range(count):
        time.sleep(1)
        yield node.audit(1)


def test_reports_a_share_that_never_asks_the_arbiter(start: Callable[..., AuditNode]) -> None:
    """While the arbiter runs, a share may not take time by itself, not even its allowance without an arbiter."""
    node = start(pods={"sneaky": (LIMIT, 0, 50, 100), "trainer": (LIMIT, 0, 50, 100)})
    sneaky, trainer = (
        node.client("sneaky", program=launching.answers),
        node.client("trainer", program=launching.answers),
    )
    trainer("launch_for_ever(by_the_library())")
    sneaky("launch_for_ever(past_it())")
    report = next((report for report in audits_of(node, 45) if report["events"]), None)
    assert report is not None, "nothing was reported"
    ((reason, _, pod),) = report["events"]
    assert (reason, pod) == ("RunsBeyondLimit", "default/sneaky")


def test_reports_a_program_that_launches_past_the_gate(
    start: Callable[..., AuditNode],
) -> None:
    node = start(pods={"sneaky": (LIMIT, 0, 10, 10), "trainer": (LIMIT, 0, 50, 60)})
    sneaky, trainer = (
        node.client("sneaky", program=launching.answers),
        node.client("trainer", program=launching.answers),
    )
    trainer("launch_for_ever(by_the_library())")
    sneaky("launch_for_ever(by_the_library())")
    assert [report["events"] for report in audits_of(node, 8)] == [[]] * 8
    sneaky("launch_for_ever(past_it())")
    report = next((report for report in audits_of(node, 90) if report["events"]), None)
    assert report is not None, "nothing was reported"
    ((reason, note, pod),) = report["events"]
    assert (reason, pod) == ("RunsBeyondLimit", "default/sneaky")
    assert re.fullmatch(
        r"the pod default/sneaky on GPU 0 \(GPU-.*\): the driver ran its kernels for \d+% of the time, "
        r"but the arbiter allowed \d+%",
        note,
    )
    assert condition(report) == ("False", "ShareBeyondLimit", note)
    shares = {share["pod"]: share for share in report["audit"]["shares"]}
    assert (shares["sneaky"]["inForce"], shares["trainer"]["inForce"]) == (False, True)
    assert shares["sneaky"]["usedPercent"] > shares["sneaky"]["letPercent"] + 15
    assert shares["trainer"]["usedPercent"] is None
    assert all(not report["events"] for report in audits_of(node, 3))  # each finding is reported once
    (line,) = re.findall(r"gpushare_share_beyond_limit_compute_ratio{.*sneaky.*} (.*)", node("figures"))
    assert float(line) > 0.15
