"""A pod whose library speaks another protocol is told of once, as soon as it is known, with the arbiter's own sentence."""

from __future__ import annotations

from typing import Any

from deviceplugin.host.identity import Container
from deviceplugin.report.refused_libraries import RefusedLibraries


def manifest(name: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "ml", "name": name, "uid": f"uid-{name}"}}


def test_each_pod_once_and_again_if_another_one_has_its_place() -> None:
    pods: list[dict[str, Any]] = []
    events: list[tuple[str, str, tuple[str, str] | None]] = []
    unspoken = RefusedLibraries(lambda: pods, lambda *event: events.append(event))
    unspoken.refused(Container("uid-a", "id"), "recreate the pod")
    assert events == []  # nobody knows whose it is
    pods += [manifest("a"), manifest("b")]
    for _ in range(3):
        unspoken.refused(Container("uid-a", "id"), "recreate the pod")
        unspoken.refused(Container("uid-a", "id of its sidecar"), "recreate the pod")
    assert events == [("LibraryRefused", "recreate the pod", ("ml", "a"))]
    pods.remove(manifest("a"))
    unspoken.refused(Container("uid-b", "id"), "recreate it")
    assert events[1:] == [("LibraryRefused", "recreate it", ("ml", "b"))]
    pods.append(manifest("a"))
    unspoken.refused(Container("uid-a", "id"), "recreate it again")
    assert events[2:] == [("LibraryRefused", "recreate it again", ("ml", "a"))]  # who has gone is not remembered
