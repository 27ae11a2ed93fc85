"""`resize` against a kubectl that answers from a file, and changes it as the placer and the agent would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract, ledger
from tests import builders
from tests.builders import GIB
from tests.kubectl_gpushare.conftest import Plugin
from tests.kubectl_gpushare.programs import kubectl_that_resizes
from tests.programs import script


@pytest.fixture
def server(tmp_path: Path) -> Callable[..., str]:
    def make(mode: str, **namespace: str) -> str:
        node = ledger.reserve(builders.node("n0", gpus=1), builders.allocation("a1", "GPU-n0-0", uid="u1"))
        node = ledger.reserve(node, builders.allocation("b", "GPU-n0-0", request=40, memory_gib=64, uid="u2"))
        manifest = builders.pod(request="0.5", memory="8Gi", node="n0", allocation="a1")
        manifest["metadata"]["uid"] = "u1"
        state: dict[str, Any] = {"gpunodes": [codec.to_document(node)], "pods": [manifest], "log": []}
        state["namespace"] = {f"{rule}.{contract.PREFIX}memory": value for rule, value in namespace.items()}
        path = tmp_path / "state.json"
        path.write_text(json.dumps(state))
        program = tmp_path / "kubectl-of-a-file"
        program.write_text(script(kubectl_that_resizes.serve, str(path), mode))
        program.chmod(0o755)
        return str(program)

    return make


def log(tmp_path: Path) -> list[dict[str, Any]]:
    changes: list[dict[str, Any]] = json.loads((tmp_path / "state.json").read_text())["log"]
    return changes


FLAGS = ("resize", "trainer", "-n", "default")
MORE, LESS = {contract.MEMORY: "16Gi", "dry": False}, {contract.MEMORY: "4Gi", "dry": False}
BACK = {contract.MEMORY: "8Gi", "dry": False}


@pytest.mark.slow
def test_resize_that_fits_is_requested_and_awaited(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    ended = plugin(*FLAGS, "--memory", "16Gi", KUBECTL_PATH=server("given"))
    assert (ended.code, ended.out, ended.err) == (0, "pod/trainer holds 0.5 GPU with 16Gi\n", "")
    assert log(tmp_path) == [MORE]


def test_nothing_changes_without_room(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    ended = plugin(*FLAGS, "--request", "0.8", KUBECTL_PATH=server("given"))
    assert (ended.code, ended.out, log(tmp_path)) == (2, "", [])
    assert ended.err == (
        "warning: nothing was changed: n0/0 has 0.1 of its compute free, 0.3 more is requested; --keep requests it anyway\n"
    )


def test_bounds_of_the_namespace_refuse_a_resize(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    bounded = server("given", max="12Gi", min="1Gi")
    ended = plugin(*FLAGS, "--memory", "16Gi", KUBECTL_PATH=bounded)
    assert (ended.code, ended.out, log(tmp_path)) == (1, "", [])
    assert ended.err == (
        'error: gpushare.io/memory of container "main" is 16Gi, but the namespace "default" has '
        'max.gpushare.io/memory "12Gi": write at most "12Gi"\n'
    )
    assert plugin(*FLAGS, "--memory", "12Gi", "--dry-run", KUBECTL_PATH=bounded).code == 0


@pytest.mark.slow
def test_memory_in_use_restores_the_annotations(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    ended = plugin(*FLAGS, "--memory", "4Gi", KUBECTL_PATH=server("refused"))
    assert (ended.code, log(tmp_path)) == (1, [LESS, BACK])
    assert ended.err == (
        "error: it uses 5.2Gi, more than the requested 4Gi; the annotations are restored, and its share is unchanged\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["refused", "ignored"])
def test_keep_keeps_the_request_after_a_timeout(
    plugin: Plugin, server: Callable[..., str], tmp_path: Path, mode: str
) -> None:
    ended = plugin(*FLAGS, "--memory", "4Gi", "--keep", "--timeout", "1", KUBECTL_PATH=server(mode))
    assert (ended.code, log(tmp_path)) == (1, [LESS])
    assert "the request stays, and is carried out as soon as possible" in ended.err
    assert ("it uses 5.2Gi, more than the requested 4Gi" in ended.err) == (mode == "refused")


@pytest.mark.slow
def test_timeout_restores_the_annotations(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    ended = plugin(*FLAGS, "--memory", "16Gi", "--timeout", "1", KUBECTL_PATH=server("ignored"))
    assert (ended.code, log(tmp_path)) == (1, [MORE, BACK])
    assert "not done after 1 s: the placer has not written it yet" in ended.err


@pytest.mark.slow
def test_interruption_keeps_the_request_and_says_so(
    plugin: Plugin, server: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kubectl_gpushare.commands.resize.time.sleep", interrupted)
    ended = plugin(*FLAGS, "--memory", "16Gi", KUBECTL_PATH=server("ignored"))
    assert (ended.code, ended.out) == (130, "")
    assert "no longer waiting: the request stays, and is carried out as soon as possible\n" in ended.err
    assert log(tmp_path) == [MORE]


@pytest.mark.slow
def test_memory_that_follows_the_request_is_mentioned(
    plugin: Plugin, server: Callable[..., str], tmp_path: Path
) -> None:
    program = server("given")
    path = tmp_path / "state.json"
    state = json.loads(path.read_text())
    del state["pods"][0]["metadata"]["annotations"][contract.MEMORY]
    path.write_text(json.dumps(state))
    ended = plugin(*FLAGS, "--request", "0.05", "--dry-run", KUBECTL_PATH=program)
    said = " ".join(ended.err.split())
    assert "warning: its memory goes from 8Gi to 4Gi, as it follows the request" in said
    assert "--memory 8Gi" in said
    assert (
        "follows" not in plugin(*FLAGS, "--request", "0.05", "--memory", "8Gi", "--dry-run", KUBECTL_PATH=program).err
    )


@pytest.mark.slow
def test_no_wait_returns_at_once(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    ended = plugin(*FLAGS, "--memory", "90Gi", "--keep", "--no-wait", KUBECTL_PATH=server("ignored"))
    assert (ended.code, ended.out) == (0, "pod/trainer asks for 0.5 GPU with 90Gi\n")
    assert log(tmp_path) == [{contract.MEMORY: "90Gi", "dry": False}]


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "code"), [("16Gi", 0), ("17Gi", 2)])
def test_dry_run_prints_the_result_and_changes_nothing(
    plugin: Plugin, server: Callable[..., str], tmp_path: Path, memory: str, code: int
) -> None:
    ended = plugin(*FLAGS, "--memory", memory, "--dry-run", KUBECTL_PATH=server("given"))
    assert ended.code == code
    assert f"Would Hold:      0.5 GPU with {memory}" in ended.out
    assert log(tmp_path) == ([{contract.MEMORY: memory, "dry": True}] if code == 0 else [])


@pytest.mark.slow
def test_a_memory_limit_is_added(plugin: Plugin, server: Callable[..., str]) -> None:
    ended = plugin(*FLAGS, "--memory-limit", "20Gi", "--dry-run", KUBECTL_PATH=server("given"))
    assert ended.code == 0
    assert "Would Hold:      0.5 GPU with 8Gi (limit 20Gi)" in ended.out


def test_saved_cluster_is_only_read(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    server("given")
    state = json.loads((tmp_path / "state.json").read_text())
    saved = tmp_path / "saved.json"
    pods = [{**state["pods"][0], "kind": "Pod", "apiVersion": "v1"}]
    saved.write_text(json.dumps({"kind": "List", "items": [*state["gpunodes"], *pods]}))
    ended = plugin(*FLAGS, "--memory", "16Gi", "--from", str(saved), "-o", "json")
    assert ended.code == 0
    document = json.loads(ended.out)
    assert (document["kind"], document["fits"]) == ("Resize", True)
    assert document["wouldHold"][0]["memoryBytes"] == 16 * GIB


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "specify the new size: --request, --limit, --memory or --memory-limit"),
        (("--memory", "8GB"), 'gpushare.io/memory "8GB" is not a quantity'),
        (("--limit", "0.1"), 'gpushare.io/limit "0.1" is less than the request'),
        (("--memory", "9Gi", "-c", "other"), 'container "other" of default/trainer has no share'),
    ],
)
def test_invalid_amount_is_rejected_before_any_change(
    plugin: Plugin, server: Callable[..., str], tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    ended = plugin(*FLAGS, *flags, KUBECTL_PATH=server("given"))
    assert ended.code == 1
    assert said in ended.err
    assert log(tmp_path) == []


def test_denial_of_the_api_server_is_an_error(plugin: Plugin, server: Callable[..., str]) -> None:
    ended = plugin(*FLAGS, "--memory", "9Gi", KUBECTL_PATH=server("denied"))
    assert ended.code == 1
    assert "it says no" in ended.err
