"""`defrag --apply` against a kubectl that answers from a file, and changes it as a cluster with owners would."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract, ledger
from kubectl_gpushare.planning import cordons
from tests import builders
from tests.kubectl_gpushare.conftest import SECONDS, Plugin, environment
from tests.kubectl_gpushare.planning.test_defragmentation import owned

# What the real ones do when a pod is evicted: the owner makes another, and the webhook places it or does not.
SERVER = """
import json, sys, urllib.parse
path, mode = {path!r}, {mode!r}
state = json.load(open(path))
words = sys.argv[1:]
def of(kind, query):
    name = dict(part.split("=", 1) for part in query.get("fieldSelector", [""])[0].split(",") if "=" in part)
    name = name.get("metadata.name")
    return [one for one in state[kind] if not name or one["metadata"]["name"] == name]
if words[0] == "get":
    found = urllib.parse.urlsplit(words[2])
    kind = found.path.rpartition("/")[2]
    items = of(kind, urllib.parse.parse_qs(found.query)) if kind in state else []
    print(json.dumps({{"kind": "List", "items": items, "metadata": {{"resourceVersion": "1"}}}}))
elif words[0] == "patch":
    node = next(one for one in state["gpunodes"] if one["metadata"]["name"] == words[2])
    patch = json.loads(words[4].partition("=")[2])
    labels = node["metadata"].setdefault("labels", {{}})
    labels.update(patch["metadata"].get("labels", {{}}))
    node["metadata"]["labels"] = {{key: value for key, value in labels.items() if value is not None}}
    node["spec"]["cordoned"] = patch["spec"]["cordoned"]
    state["log"].append(["cordoned", *node["spec"]["cordoned"]])
elif words[0] == "create":
    eviction = json.load(sys.stdin)
    name = eviction["metadata"]["name"]
    if mode == "refused":
        sys.exit("Error from server (TooManyRequests): Cannot evict pod as it would violate its disruption budget.")
    state["log"].append(["evicted", name])
    pod = next(one for one in state["pods"] if one["metadata"]["name"] == name)
    assert eviction["deleteOptions"]["preconditions"]["uid"] == pod["metadata"]["uid"]
    pod["metadata"].update(name=name + "-anew", uid="uid-anew-" + name)
    pod["spec"].pop("nodeName", None)
    if mode == "gated":
        pod["spec"]["schedulingGates"] = [{{"name": "gpushare.io/placement"}}]
        pod["metadata"]["annotations"]["gpushare.io/reason"] = "no GPU fits"
    else:
        pod["metadata"]["annotations"]["gpushare.io/allocation"] = "new"
        pod["metadata"]["annotations"]["gpushare.io/node"] = "n0"
        for entry in state["gpunodes"][0]["spec"]["allocations"]:
            if entry["pod"]["name"] == name and mode == "placed":
                entry["pod"]["uid"] = pod["metadata"]["uid"]
                entry["shares"][0]["gpus"] = ["GPU-n0-1"]
if words[0] != "get":  # several may ask at once
    json.dump(state, open(path, "w"))
"""


@pytest.fixture
def server(tmp_path: Path) -> Callable[[str], str]:
    def make(mode: str) -> str:
        node = builders.node("n0", gpus=2)
        pods = [owned("a", request="0.25"), owned("b", request="0.5")]
        for index, manifest in enumerate(pods):
            name = manifest["metadata"]["name"]
            request = (25, 50)[index]
            entry = builders.allocation(
                name, f"GPU-n0-{index}", request=request, memory_gib=8, pod_name=name, uid=f"uid-{name}"
            )
            node = ledger.reserve(node, entry)
            manifest["metadata"]["labels"][contract.SHARE_LABEL] = contract.SHARE_LABEL_VALUE
            manifest["spec"]["nodeName"] = "n0"
        state: dict[str, Any] = {"gpunodes": [codec.to_document(node)], "pods": pods, "nodes": [], "log": []}
        state["nodes"] = [
            {
                "kind": "Node",
                "metadata": {"name": "n0", "labels": {contract.HOSTNAME_LABEL: "n0"}},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }
        ]
        path = tmp_path / "state.json"
        path.write_text(json.dumps(state))
        program = tmp_path / "kubectl-of-a-file"
        program.write_text(f"#!{sys.executable}" + SERVER.format(path=str(path), mode=mode))
        program.chmod(0o755)
        return str(program)

    return make


def log(tmp_path: Path) -> list[list[str]]:
    found: list[list[str]] = json.loads((tmp_path / "state.json").read_text())["log"]
    return found


FLAGS = ("defrag", "-n", "default", "--request", "1")


def test_without_apply_nothing_is_changed(plugin: Plugin, server: Callable[[str], str], tmp_path: Path) -> None:
    ended = plugin(*FLAGS, KUBECTL_PATH=server("placed"))
    assert ended.code == 0
    assert "default/a   n0/0   n0/1" in ended.out
    assert log(tmp_path) == []


def test_moves_are_made_one_by_one_between_cordon_and_uncordon(
    plugin: Plugin, server: Callable[[str], str], tmp_path: Path
) -> None:
    ended = plugin(*FLAGS, "--apply", KUBECTL_PATH=server("placed"))
    assert (ended.code, log(tmp_path)) == (0, [["cordoned", "GPU-n0-0"], ["evicted", "a"], ["cordoned"]])
    assert ended.err.splitlines() == [
        "cordoned 1 GPU of n0 for the time being",
        "[1/1] evicting default/a from n0/0",
        "[1/1] default/a is on n0 now",
        "uncordoned 1 GPU of n0 again",
        "there is room for the share on n0/0",
    ]


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("gated", "default/a-anew, made instead of it, waits: no GPU fits"),
        ("refused", "Cannot evict pod as it would violate its disruption budget"),
    ],
)
def test_the_first_move_that_fails_ends_it_and_the_gpus_are_uncordoned(
    plugin: Plugin, server: Callable[[str], str], tmp_path: Path, mode: str, sentence: str
) -> None:
    ended = plugin(*FLAGS, "--apply", "--timeout", "1", KUBECTL_PATH=server(mode))
    assert ended.code == 1
    assert "error: stopped after 0 of 1 moves" in ended.err
    assert sentence in ended.err
    assert log(tmp_path)[-1] == ["cordoned"]


def labels(tmp_path: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((tmp_path / "state.json").read_text())["gpunodes"][0]["metadata"]["labels"]
    return found


def mark(tmp_path: Path, uuid: str, text: str) -> None:
    """Cordons a GPU as a run does."""
    path = tmp_path / "state.json"
    state = json.loads(path.read_text())
    node = state["gpunodes"][0]
    node["metadata"].setdefault("labels", {})[contract.DEFRAG_LABEL_PREFIX + uuid] = text
    node["spec"]["cordoned"] = sorted({*node["spec"].get("cordoned", ()), uuid})
    path.write_text(json.dumps(state))


def begun(program: str, tmp_path: Path, *flags: str) -> subprocess.Popen[str]:
    """A run that has evicted a pod and waits for the next, which never finds a place."""
    running = subprocess.Popen(
        [sys.executable, "-m", "kubectl_gpushare", *FLAGS, "--apply", *flags],
        env=environment(KUBECTL_PATH=program),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + SECONDS
    while ["evicted", "a"] not in log(tmp_path):
        assert time.monotonic() < until
        time.sleep(0.05)
    return running


def test_what_was_kept_by_one_that_was_killed_is_told_and_opened_by_the_next(
    plugin: Plugin, server: Callable[[str], str], tmp_path: Path
) -> None:
    program = server("placed")
    mark(tmp_path, "GPU-n0-1", "1f2e3d4c.20260301T120000Z")
    ended = plugin(*FLAGS, KUBECTL_PATH=program)
    assert "Cordoned:" in ended.out
    assert "n0/1 was left cordoned by a `defrag --apply` that did not come to its end" in ended.out
    assert "kubectl gpushare uncordon gpu n0/1" in ended.out
    ended = plugin(*FLAGS, "--apply", KUBECTL_PATH=program)
    assert (ended.code, log(tmp_path)) == (0, [["cordoned"], ["cordoned", "GPU-n0-0"], ["evicted", "a"], ["cordoned"]])
    assert ended.err.startswith(
        "uncordoned 1 GPU of n0: a defrag --apply that did not come to its end had left them so\n"
    )
    assert labels(tmp_path) == {}


def test_while_another_is_under_way_nothing_is_moved(
    plugin: Plugin, server: Callable[[str], str], tmp_path: Path
) -> None:
    program = server("placed")
    mark(tmp_path, "GPU-n0-1", "1f2e3d4c.29990301T120000Z")
    ended = plugin(*FLAGS, "--apply", KUBECTL_PATH=program)
    assert (ended.code, log(tmp_path)) == (1, [])
    assert ended.err == (
        "error: n0/1 is kept cordoned by another `defrag --apply`, until 12:00:00Z at most: wait for it; if it was killed, "
        "uncordon them yourself\n"
    )
    assert plugin("uncordon", "gpu", "n0/1", KUBECTL_PATH=program).out == "n0/1 uncordoned\n"
    assert plugin(*FLAGS, "--apply", KUBECTL_PATH=program).code == 0


def test_what_an_admin_has_cordoned_stays_so(plugin: Plugin, server: Callable[[str], str], tmp_path: Path) -> None:
    program = server("placed")
    mark(tmp_path, "GPU-n0-1", "1f2e3d4c.20260301T120000Z")
    assert plugin("cordon", "gpu", "n0/1", KUBECTL_PATH=program).out == "n0/1 already cordoned: 1 pod stays on it\n"
    assert labels(tmp_path) == {}
    assert "Cordoned:" not in plugin(*FLAGS, KUBECTL_PATH=program).out
    assert plugin(*FLAGS, "--apply", KUBECTL_PATH=program).code == 2
    assert log(tmp_path) == [["cordoned", "GPU-n0-1"]]


def test_moves_that_leave_no_room_are_no_success(plugin: Plugin, server: Callable[[str], str], tmp_path: Path) -> None:
    """The pod was placed where it had been: whoever waits is not helped."""
    ended = plugin(*FLAGS, "--apply", "--timeout", "1", KUBECTL_PATH=server("back"))
    assert ended.code == 1
    assert "error: stopped after 1 of 1 moves: there is still no room for the share: no GPU fits" in ended.err
    assert log(tmp_path)[-1] == ["cordoned"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_one_that_is_ended_opens_what_it_keeps(
    server: Callable[[str], str], tmp_path: Path, number: signal.Signals
) -> None:
    with begun(server("gated"), tmp_path) as running:
        running.send_signal(number)
        _, said = running.communicate(timeout=SECONDS)
    assert running.returncode == 130
    assert log(tmp_path)[-1] == ["cordoned"]
    assert labels(tmp_path) == {}
    assert said.rstrip().splitlines()[-2:] == [
        "uncordoned 1 GPU of n0 again",
        "interrupted after 0 of 1 moves; an evicted pod is made anew by its owner all the same",
    ]


@pytest.mark.slow
def test_one_that_is_killed_leaves_marks_that_end_by_themselves(server: Callable[[str], str], tmp_path: Path) -> None:
    with begun(server("gated"), tmp_path, "--timeout", "600") as running:
        running.kill()
    assert list(labels(tmp_path)) == [contract.DEFRAG_LABEL_PREFIX + "GPU-n0-0"]
    node = codec.read(json.loads((tmp_path / "state.json").read_text())["gpunodes"][0])
    until = cordons.of(node)["GPU-n0-0"].until
    assert 600 < until - time.time() <= 661
    assert cordons.left_behind([node], now=until - 1) == {}
    assert cordons.left_behind([node], now=until) == {"n0": frozenset({"GPU-n0-0"})}


def test_saved_objects_cannot_be_moved(plugin: Plugin, saved: Path) -> None:
    ended = plugin("defrag", "--apply", "--from", saved)
    assert (ended.code, ended.err.splitlines()[0]) == (
        1,
        "error: --apply needs a cluster: files of --from are only read",
    )
