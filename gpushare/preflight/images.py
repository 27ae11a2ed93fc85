"""Rules about images: whether nodes can get them at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import node as objects
from gpushare.preflight.facts_of_cluster import ClusterFacts, entries
from gpushare.preflight.finding import Finding, Rule, RulePhase, Severity, counted, listed
from gpushare.preflight.workload import Workload

_WITH_MANIFESTS = "kubectl kustomize config/default | kubectl gpushare check --before-install -f -"
_NO_REGISTRY = "localhost/"  # image builders' registry for images without one


def _images(facts: ClusterFacts) -> Iterator[Finding]:
    machines = facts.of("Node")
    if not facts.plan.is_known:
        sentence = "the images to install are unknown"
        yield Finding(Severity.INFO, sentence, (), "pass the manifests", (_WITH_MANIFESTS,))
        return
    anywhere = ((workload, machines) for workload in (facts.plan.webhook, facts.plan.defrag))
    parts = ((facts.plan.agent, facts.gpu_nodes() or machines), *anywhere)
    wrong: dict[str, tuple[str, ...]] = {}
    for workload, where in parts:
        for image in _unpulled(workload):
            lacking = tuple(objects.name(item) for item in where if image not in _loaded(item))
            # Deployment and CronJob needs one node with the image, a DaemonSet needs it on all of its nodes.
            if not where or (lacking and workload is facts.plan.agent) or len(lacking) == len(where):
                wrong[image] = lacking
    if wrong:
        yield Finding(
            Severity.BLOCKING,
            f"{listed(sorted(wrong))}: names without a registry{_of_images(wrong)}",
            tuple(f"node/{name}" for name in sorted({name for some in wrong.values() for name in some})),
            "push the images to a registry that the nodes can pull from, and name it",
            ("make images PUSH=REGISTRY/PREFIX", "./install.sh --registry REGISTRY/PREFIX"),
        )


def _of_images(wrong: Mapping[str, tuple[str, ...]]) -> str:
    lacking = {name for some in wrong.values() for name in some}
    if not lacking:
        return ""
    lack = "lacks" if len(lacking) == 1 else "lack"
    return f", and {counted(lacking)} {lack} the images (a kubelet reports a new one within a minute)"


def _unpulled(workload: Workload) -> tuple[str, ...]:
    return tuple(image for image in workload.images() if image.startswith(_NO_REGISTRY) or not image)


def _loaded(node: Mapping[str, Any]) -> frozenset[str]:
    """Return the images that the kubelet reports; it lists only the largest fifty."""
    return frozenset(str(name) for entry in entries(node, "status", "images") for name in entry.get("names") or ())


RULES: Final = (
    Rule(
        "images",
        "the nodes can get the images",
        "a pod whose image cannot be pulled never starts",
        _images,
        RulePhase.BEFORE,
    ),
)
