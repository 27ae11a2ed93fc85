"""`defrag --apply` against a kubectl that answers from a file, and changes it as a cluster with owners would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare import codec, contract
from gpushare.defragmentation import cordons
from kubectl_gpushare import moving
from tests.kubectl_gpushare import owners
from tests.kubectl_gpushare.conftest import SECONDS, Plugin, environment

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Callable[[str], str]:
    return lambda mode: owners.program(tmp_path, mode)


FLAGS = ("defrag", "-n", "default", "--request", "1")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def test_without_apply_nothing_is_changed(plugin: Plugin, server: Callable[[str], str], tmp_path: Path) -> None:
    ended = plugin(*FLAGS, KUBECTL_PATH=server("placed"))
    assert ended.code == 0
    assert "default/a   n0/0   n0/1" in ended.out
    assert owners.log(tmp_path) == []


def test_moves_are_made_one_by_one_on_cordoned_gpus(
    plugin: Plugin, server: Callable[[str], str], tmp_path: Path
) -> None:
    ended = plugin(*FLAGS, "--apply", KUBECTL_PATH=server("placed"))
    assert (ended.code, owners.log(tmp_path)) == (0, [["cordoned", "GPU-n0-0"], ["evicted", "a"], ["cordoned"]])
    assert ended.err.splitlines() == [
        "cordoned 1 GPU of n0 for the time being",
        "[1/1] evicting default/a from n0/0",
        "[1/1] default/a is on n0 now",
        "uncordoned 1 GPU of n0 again",
        "there is room for the share on n0/0",
    ]


def test_moves_without_a_waiting_pod_are_not_checked_further(
    plugin: Plugin, server: Callable[[str], str], tmp_path: Path
) -> None:
    ended = plugin("defrag", "-n", "default", "--moves", "1", "--apply", KUBECTL_PATH=server("placed"))
    assert ended.code == 0
    assert "Gained" in ended.out
    assert ["evicted", "a"] in owners.log(tmp_path)
    assert owners.log(tmp_path)[-1] == ["cordoned"]
    assert "there is room for" not in ended.err


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("gated", "its replacement default/a-anew waits: no GPU fits"),
        ("grows", "after 1 s its ReplicaSet has 1 of 2 pods"),
        ("refused", "Cannot evict pod as it would violate its disruption budget"),
    ],
)
def test_failed_move_ends_the_run_and_uncordons(
    plugin: Plugin, server: Callable[[str], str], tmp_path: Path, mode: str, sentence: str
) -> None:
    ended = plugin(*FLAGS, "--apply", "--timeout", "1", KUBECTL_PATH=server(mode))
    assert ended.code == 1
    assert "error: stopped after 0 of 1 moves" in ended.err
    assert sentence in ended.err
    assert owners.log(tmp_path)[-1] == ["cordoned"]


def test_move_finished_in_the_last_pause_succeeds(
    plugin: Plugin, server: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = server("gated")
    passed = 0.0  # counts pauses only: on a busy machine the first poll takes longer than this move may

    def pause(seconds: float) -> None:
        nonlocal passed
        place_replacement(tmp_path)
        passed += seconds

    clock = types.SimpleNamespace(monotonic=lambda: passed, sleep=pause, time=time.time)
    monkeypatch.setattr(moving, "time", clock)
    ended = plugin(*FLAGS, "--apply", "--timeout", str(round(moving.LOOK_SECONDS)), KUBECTL_PATH=program)
    assert (ended.code, "[1/1] default/a is on n0 now" in ended.err) == (0, True), ended.err


def place_replacement(folder: Path) -> None:
    """Place the replacement of pod "a" as the placer would, between two requests."""
    path = folder / "state.json"
    state = json.loads(path.read_text())
    pod = next(manifest for manifest in state["pods"] if manifest["metadata"]["name"] == "a-anew")
    pod["spec"]["schedulingGates"] = []
    pod["metadata"]["annotations"] |= {contract.ALLOCATION: "new", contract.NODE: "n0"}
    (entry,) = [held for held in state["gpunodes"][0]["spec"]["allocations"] if held["pod"]["name"] == "a"]
    entry["pod"]["uid"] = pod["metadata"]["uid"]
    entry["shares"][0]["gpus"] = ["GPU-n0-1"]
    path.write_text(json.dumps(state))


def test_owner_scaled_up_during_a_move_gets_all_pods_placed(
    plugin: Plugin, server: Callable[[str], str], tmp_path: Path
) -> None:
    ended = plugin(*FLAGS, "--apply", KUBECTL_PATH=server("grown"))
    assert (ended.code, "[1/1] default/a is on n0 now" in ended.err) == (0, True)


def test_owner_scaled_down_during_a_move_needs_no_replacement(
    plugin: Plugin, server: Callable[[str], str], tmp_path: Path
) -> None:
    ended = plugin(*FLAGS, "--apply", KUBECTL_PATH=server("shrinks"))
    assert "[1/1] default/a is gone, and its ReplicaSet wants no replacement" in ended.err
    assert ended.code == 0


CROWDED = ("defrag", "w", "-n", "default", "--cpu-pods")


def test_cpu_pod_has_moved_once_its_successor_is_scheduled(
    plugin: Plugin, server: Callable[[str], str], tmp_path: Path
) -> None:
    program = server("cpu-only")
    assert plugin("defrag", "w", "-n", "default", KUBECTL_PATH=program).code == 2
    planned = plugin(*CROWDED, KUBECTL_PATH=program)
    assert (planned.code, owners.log(tmp_path)) == (0, [])
    assert "default/c   n0     plain   CPU only   <none>" in planned.out
    move = json.loads(plugin(*CROWDED, "-o", "json", KUBECTL_PATH=program).out)["steps"][0]["moves"][0]
    assert (move["pod"]["name"], move["from"], move["to"], move["cpuOnly"]) == ("c", "n0", "plain", True)
    ended = plugin(*CROWDED, "--apply", KUBECTL_PATH=program)
    assert "[1/1] default/c is on plain now" in ended.err
    assert "default/w is on n0 now" in ended.err
    assert (ended.code, ["evicted", "c"] in owners.log(tmp_path)) == (0, True)


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("cpu-only-pending", "its replacement default/c-anew is not scheduled: 0/2 nodes are available"),
        ("cpu-only-back", "default/c was evicted, and the scheduler put its replacement on n0 again"),
    ],
)
def test_unschedulable_cpu_pod_ends_the_run(
    plugin: Plugin, server: Callable[[str], str], mode: str, sentence: str
) -> None:
    ended = plugin(*CROWDED, "--apply", "--timeout", "1", KUBECTL_PATH=server(mode))
    assert ended.code == 1
    assert "error: stopped after 0 of 1 moves" in ended.err
    assert sentence in ended.err


def test_emptying_moves_only_shares(plugin: Plugin, server: Callable[[str], str]) -> None:
    ended = plugin("defrag", "--empty-nodes", "--cpu-pods", KUBECTL_PATH=server("cpu-only"))
    assert ended.code == 1
    assert "--empty-nodes moves shares alone: leave out --cpu-pods" in ended.err


def heed_signals() -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)


def started_run(program: str, tmp_path: Path, *flags: str) -> subprocess.Popen[str]:
    """Start a run that has evicted a pod and waits for its replacement, which is never placed.

    The run handles all signals, even if the tests were started by nohup or in the background of a script, where some
    are ignored.
    """
    running = subprocess.Popen(
        [sys.executable, "-m", "kubectl_gpushare", *FLAGS, "--apply", *flags],
        env=environment(KUBECTL_PATH=program),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
    )
    until = time.monotonic() + SECONDS
    while ["evicted", "a"] not in owners.log(tmp_path):
        if time.monotonic() > until or running.poll() is not None:
            running.kill()
            raise AssertionError(running.communicate()[1])
        time.sleep(0.05)
    return running


def test_cordons_of_a_killed_run_are_removed_by_the_next(
    plugin: Plugin, server: Callable[[str], str], tmp_path: Path
) -> None:
    program = server("placed")
    owners.mark(tmp_path, "GPU-n0-1", "1f2e3d4c.20260301T120000Z")
    ended = plugin(*FLAGS, KUBECTL_PATH=program)
    assert "Cordoned:" in ended.out
    assert "n0/1 was left cordoned by an interrupted `defrag --apply`" in ended.out
    assert "kubectl gpushare uncordon gpu n0/1" in ended.out
    ended = plugin(*FLAGS, "--apply", KUBECTL_PATH=program)
    assert (ended.code, owners.log(tmp_path)) == (
        0,
        [["cordoned"], ["cordoned", "GPU-n0-0"], ["evicted", "a"], ["cordoned"]],
    )
    assert ended.err.startswith(
        "uncordoned 1 GPU of n0: a defrag --apply that did not come to its end had left them so\n"
    )
    assert owners.labels(tmp_path) == {}


def test_run_is_rejected_while_another_is_under_way(
    plugin: Plugin, server: Callable[[str], str], tmp_path: Path
) -> None:
    program = server("placed")
    owners.mark(tmp_path, "GPU-n0-1", "1f2e3d4c.29990301T120000Z")
    ended = plugin(*FLAGS, "--apply", KUBECTL_PATH=program)
    assert (ended.code, owners.log(tmp_path)) == (1, [])
    assert ended.err == (
        "error: n0/1 is cordoned by another `defrag --apply` until 12:00:00Z at the latest: wait until it ends; if it was "
        "killed, run `kubectl gpushare uncordon` for them\n"
    )
    assert plugin("uncordon", "gpu", "n0/1", KUBECTL_PATH=program).out == "n0/1 uncordoned\n"
    assert plugin(*FLAGS, "--apply", KUBECTL_PATH=program).code == 0


def test_admins_cordon_stays(plugin: Plugin, server: Callable[[str], str], tmp_path: Path) -> None:
    program = server("placed")
    owners.mark(tmp_path, "GPU-n0-1", "1f2e3d4c.20260301T120000Z")
    assert plugin("cordon", "gpu", "n0/1", KUBECTL_PATH=program).out == "n0/1 already cordoned: 1 pod stays on it\n"
    assert owners.labels(tmp_path) == {}
    assert "Cordoned:" not in plugin(*FLAGS, KUBECTL_PATH=program).out
    assert plugin(*FLAGS, "--apply", KUBECTL_PATH=program).code == 2
    assert owners.log(tmp_path) == [["cordoned", "GPU-n0-1"]]


def test_moves_without_the_planned_room_fail(plugin: Plugin, server: Callable[[str], str], tmp_path: Path) -> None:
    """The pod was placed where it had been, which does not help the waiting pod."""
    ended = plugin(*FLAGS, "--apply", "--timeout", "1", KUBECTL_PATH=server("back"))
    assert ended.code == 1
    assert "error: stopped after 1 of 1 moves: still no room for the share: no GPU fits" in ended.err
    assert owners.log(tmp_path)[-1] == ["cordoned"]


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_terminated_run_uncordons(server: Callable[[str], str], tmp_path: Path, number: signal.Signals) -> None:
    with started_run(server("gated"), tmp_path) as running:
        running.send_signal(number)
        _, said = running.communicate(timeout=SECONDS)
    assert running.returncode == 130
    assert owners.log(tmp_path)[-1] == ["cordoned"]
    assert owners.labels(tmp_path) == {}
    assert said.rstrip().splitlines()[-2:] == [
        "uncordoned 1 GPU of n0 again",
        "interrupted after 0 of 1 moves; an evicted pod is recreated by its owner all the same",
    ]


def test_cordons_of_a_killed_run_expire(server: Callable[[str], str], tmp_path: Path) -> None:
    with started_run(server("gated"), tmp_path, "--timeout", "600") as running:
        running.kill()
    assert list(owners.labels(tmp_path)) == [contract.DEFRAG_LABEL_PREFIX + "GPU-n0-0"]
    node = codec.read(json.loads((tmp_path / "state.json").read_text())["gpunodes"][0])
    until = cordons.read(node)["GPU-n0-0"].until
    assert 840 < until - time.time() <= 901  # the cordon also lasts for a clock that is minutes ahead
    assert not cordons.left_behind(node, now=until - 1)
    assert [*cordons.left_behind(node, now=until)] == ["GPU-n0-0"]


def test_run_goes_on_after_its_terminal_is_closed(server: Callable[[str], str], tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as nobody:
        ended = subprocess.run(
            [sys.executable, "-m", "kubectl_gpushare", *FLAGS, "--apply"],
            env=environment(KUBECTL_PATH=server("placed")),
            stdout=subprocess.DEVNULL,
            stderr=nobody,
            timeout=SECONDS,
            check=False,
        )
    assert (ended.returncode, owners.log(tmp_path)) == (0, [["cordoned", "GPU-n0-0"], ["evicted", "a"], ["cordoned"]])


def test_saved_objects_cannot_be_moved(plugin: Plugin, saved: Path) -> None:
    ended = plugin("defrag", "--apply", "--from", saved)
    assert (ended.code, ended.err.splitlines()[0]) == (
        1,
        "error: --apply needs a cluster: files of --from are only read",
    )
