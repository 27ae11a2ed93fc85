"""The page of a real API server: a change arrives, and so does a pod that waits."""

from __future__ import annotations

import contextlib
import json
import signal
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kubectl_gpushare.conftest import SECONDS, Kubectl
from tests.kubectl_gpushare.ui.test_ui_command import started

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]


@contextlib.contextmanager
def served(kubectl: Kubectl) -> Iterator[Callable[[str], Any]]:
    """Run `kubectl gpushare ui`; yield a function that opens a path of its address."""
    process, address = started("--no-browser", "--no-usage", **kubectl.environment)
    place, _, token = address.partition("/?token=")
    try:
        yield lambda path: urllib.request.urlopen(f"{place}{path}token={token}", timeout=SECONDS)  # noqa: S310
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)


def until(stream: Any, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Read events until one meets the condition; the socket's timeout bounds the wait."""
    for line in stream:
        if line.startswith(b"data: "):
            change: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            if condition(change):
                return change
    raise AssertionError("the stream ended")


def test_a_change_of_the_cluster_arrives(kubectl: Kubectl, namespace: str) -> None:
    with served(kubectl) as get:
        model = json.load(get("/cluster?"))
        assert {item["name"] for item in model["nodes"]} == {"gpu-1", "gpu-2", "gpu-10"}
        assert [item["pod"] for item in model["queue"]["pods"]] == [f"{namespace}/waiting"]
        assert model["absent"]["used"] == "--no-usage was given"
        stream = get(f"/changes?after={model['version']}&")
        assert kubectl("gpushare", "cordon", "gpu", "gpu-1/3").code == 0
        change = until(stream, lambda change: any(item["name"] == "gpu-1" for item in change.get("changed", ())))
        (item,) = (item for item in change["changed"] if item["name"] == "gpu-1")
        assert item["gpus"][3]["cordoned"]
        assert kubectl("delete", "pod", "waiting", "-n", namespace, "--wait=false").code == 0
        change = until(stream, lambda change: "queue" in change)
        assert change["queue"]["pods"] == []
        answer = json.load(get("/describe?kind=gpu&name=gpu-1/3&"))
        assert "error" not in answer
