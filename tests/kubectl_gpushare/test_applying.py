"""`defrag --apply` against a kubectl that answers from a file, and changes it as a cluster with owners would."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract, ledger
from tests import builders
from tests.kubectl_gpushare.conftest import Plugin
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
    node["spec"]["cordoned"] = json.loads(words[4].partition("=")[2])["spec"]["cordoned"]
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
        "uncordoned n0's GPUs again",
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


def test_saved_objects_cannot_be_moved(plugin: Plugin, saved: Path) -> None:
    ended = plugin("defrag", "--apply", "--from", saved)
    assert (ended.code, ended.err.splitlines()[0]) == (
        1,
        "error: --apply needs a cluster: files of --from are only read",
    )
