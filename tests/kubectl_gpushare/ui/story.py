"""A scripted story for the page: a busy cluster, a GPU that fails, and a queue that drains; and large clusters."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpushare import codec
from gpushare.gpunode import GpuNode
from kubectl_gpushare import options
from kubectl_gpushare.source import live_usage
from kubectl_gpushare.source.files import Files
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.ui import page_history
from kubectl_gpushare.ui.page_answers import PageAnswers
from kubectl_gpushare.ui.page_model import Json, Scene
from kubectl_gpushare.ui.page_server import PageServer
from kubectl_gpushare.ui.page_state import PageState
from tests.kubectl_gpushare import sample

NOW = sample.NOW
REASON = (
    "no GPU fits 0.8 GPU with 60Gi: of 8 GPUs on 2 nodes, 8 with too little compute free; "
    "nearest: a/1 has 0.6 of its compute free"
)
WORK = (
    ("ml/train-0", "a", 0, 70, 56),
    ("ml/notebook", "a", 0, 20, 16),
    ("ml/embed-0", "a", 1, 40, 30),
    ("web/chat", "a", 2, 60, 40),
    ("web/search", "a", 3, 50, 44),
    ("ml/train-1", "b", 0, 100, 80),
    ("ml/embed-1", "b", 1, 45, 30),
    ("web/rank", "b", 2, 75, 62),
    ("batch/nightly", "b", 3, 50, 30),
)
BUSY = (62, 0, 31, 44, 12, 97, 33, 60, 8)  # per cent of each one's GPU


def node(name: str, *, sick: int = -1, without: str = "", more: Sequence[tuple[str, int, int, int]] = ()) -> GpuNode:
    """Return a node of four GPUs with its part of the work; `sick`: the index of a GPU that has failed."""
    gpus = [sample.gpu(name, index) for index in range(4)]
    if sick >= 0:
        gpus[sick] = dataclasses.replace(
            gpus[sick], healthy=False, health_reason="XID 79: the GPU has fallen off the bus"
        )
    work = [(pod, index, percent, gib) for pod, where, index, percent, gib in WORK if where == name and pod != without]
    held = [sample.held(pod, gpus[index].uuid, request=percent, gib=gib) for pod, index, percent, gib in (*work, *more)]
    return GpuNode(name, tuple(gpus), tuple(held), config="default", labels={"agentpool": f"pool-{name}"})


def owned(name: str, where: str) -> dict[str, Any]:
    manifest = sample.pod(name, node=where, request="0.4", memory="30Gi")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}
    manifest["metadata"]["ownerReferences"] = [owner]
    return manifest


def usage() -> live_usage.Usage:
    lines = []
    for (name, where, index, _, gib), busy in zip(WORK, BUSY, strict=True):
        namespace, _, pod = name.partition("/")
        labels = f'{{node="{where}",namespace="{namespace}",pod="{pod}",containers="main",gpu="{sample.uuid(where, index)}"}}'
        lines += [f"{live_usage.MEMORY}{labels} {gib * 0.8 * sample.GIB}", f"{live_usage.COMPUTE}{labels} {busy / 100}"]
    return live_usage.parse({"a": "\n".join(lines), "b": ""})


def pods(*, is_waiting: bool = True) -> list[dict[str, Any]]:
    there = [owned(name, where) for name, where, *_ in WORK]
    waits = [sample.gated("ml/finetune", request="0.8", memory="60Gi", reason=REASON)]
    return [*there, *(waits if is_waiting else ())]


def busy() -> Scene:
    """Return how the story begins: one pod waits, and one share is idle."""
    snapshot = Snapshot((node("a"), node("b")), pods(), usage=usage())
    return Scene(snapshot, NOW, "story", is_live=True, usage_at=NOW)


def failing() -> Scene:
    """Return the cluster after a GPU has failed."""
    scene = busy()
    nodes = (node("a", sick=2), node("b"))
    return dataclasses.replace(scene, at=NOW + 20, snapshot=dataclasses.replace(scene.snapshot, nodes=nodes))


def drained() -> Scene:
    """Return the cluster after a pod has left, so that the waiting pod has its share."""
    scene = failing()
    nodes = (node("a", sick=2), node("b", without="ml/train-1", more=(("ml/finetune", 0, 80, 60),)))
    manifest = sample.pod("ml/finetune", node="b", request="0.8", memory="60Gi")
    snapshot = dataclasses.replace(scene.snapshot, nodes=nodes, pods=[*pods(is_waiting=False), manifest])
    return dataclasses.replace(scene, at=NOW + 40, snapshot=snapshot)


def fleet(count: int) -> Scene:
    """Return a cluster of nodes with eight GPUs each, filled to different degrees."""
    nodes = []
    for number in range(count):
        name = f"gpu-node-{number:04}"
        gpus = tuple(sample.gpu(name, index) for index in range(8))
        held = [
            sample.held(
                f"team-{number % 7}/job-{number}-{gpu.index}", gpu.uuid, request=10 * ((number + gpu.index) % 11), gib=8
            )
            for gpu in gpus
        ]
        nodes.append(GpuNode(name, gpus, tuple(held)))
    return Scene(Snapshot(tuple(nodes), ()), NOW, "fleet", is_live=True, why_no_usage="agents were not asked")


def hostile() -> Scene:
    """Return a cluster whose names are markup, scripts and characters that reverse text."""
    evil = '<img src=x onerror="window.hacked=1">\u202e</script><script>window.hacked=1</script>'
    gpu = dataclasses.replace(sample.gpu("a", 0), model=evil, healthy=False, health_reason=evil)
    gpus = (gpu, sample.gpu("a", 1))
    held = sample.held(f"ml/{evil.replace('/', '')}", gpus[1].uuid, request=50, gib=8)
    waits = sample.gated("ml/x", request="1", reason=f"{evil}; nearest: {evil}")
    waits["metadata"]["name"] = evil
    snapshot = Snapshot((GpuNode(evil, gpus, (held,)),), [waits], notes=(f"pods: {evil}",))
    return Scene(snapshot, NOW, evil, is_live=True, why_no_usage=evil, trouble=evil)


class Stage:
    """A served page of the story, whose scenes change as a test says. PageAnswers come from the scene's objects."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.scene = scene
        self._file = folder / "scene.json"
        points = page_history.before(scene.snapshot, None, scene.at)
        self.state = PageState(points)
        self.state.publish(scene)
        self.server = PageServer(self.state, self)

    def __contains__(self, name: str) -> bool:
        return name in {"why", "fit", "defrag", "describe"}

    def answer(self, name: str, question: dict[str, str]) -> Json:
        snapshot = self.scene.snapshot
        items = [*map(codec.to_document, snapshot.nodes), *(snapshot.pods or ())]
        self._file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        return PageAnswers(Files([str(self._file)]), options.Options(), lambda: self.scene).answer(name, question)

    def show(self, scene: Scene) -> None:
        self.scene = scene
        self.state.publish(scene)

    def close(self) -> None:
        self.state.close()
        self.server.close()
