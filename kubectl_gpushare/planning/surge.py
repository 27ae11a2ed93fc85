"""Surge: a Deployment's new pod that waits for the GPU of the old pod, which is to stay until the new one is ready."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpushare import pod
from gpushare.placement import Placement
from gpushare.refusal import Rejected
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod, World
from kubectl_gpushare.planning.remedy import Remedy


def without(world: World, asked: RequestingPod, _rejected: Sequence[Rejected]) -> Iterator[Remedy]:
    """Return the world after one pod of an older template of its Deployment has ended."""
    deployment, template = pod.deployment(asked.manifest)
    namespace, _ = pod.namespaced_name(asked.manifest)
    for view in [*world.views.values()] if deployment else ():
        for entry in view.node.allocations:
            manifest = world.manifest(entry)
            if manifest is None or entry.pod.namespace != namespace:
                continue
            its_deployment, its_template = pod.deployment(manifest)
            if its_deployment != deployment or its_template == template:
                continue
            back = world.remove(manifest, view.node.name, entry)
            answer = world.place(asked.manifest, asked.request)
            back()
            if isinstance(answer, Placement):
                sentence = f"if {entry.pod}, of an older template, ended first: maxSurge 0 in deploy/{deployment}"
                yield Remedy(sentence, answer, worlds.gpus(answer, world.views), "surge")
                return
