"""`describe`: shows one node, GPU or pod in full: its shares and its problems."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import click

from gpushare import contract, pod
from gpushare.gpunode import GpuNode
from gpushare.node import NodeJson
from gpushare.whatif import unavailable_nodes
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import layout, printing, terminal
from kubectl_gpushare.output.values import Document, Page, list_document, single_document
from kubectl_gpushare.source import chosen_source, live_cluster, workloads
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import gpu_page, gpu_summary, pod_page

KINDS = {
    **dict.fromkeys(("node", "nodes", "no"), "node"),
    **dict.fromkeys(("gpu", "gpus"), "gpu"),
    **dict.fromkeys(("pod", "pods", "po"), "pod"),
}

# A described object: functions that make its page and its document; only one of them is called.
Described = tuple[Callable[[], Page], Callable[[], Document]]


@click.command(short_help="Show the shares of a node or GPU, or the share of a pod and why it is there")
@click.argument("arguments", nargs=-1, metavar="node|gpu|pod|TYPE/NAME [NAME...]", shell_complete=candidates.describe)
@options.printed(("json", "yaml"))
@options.selector
@options.namespaced(candidates.namespaces)
@options.connection(candidates.contexts)
def command(arguments: tuple[str, ...], **params: Any) -> None:
    """Show the shares of a node or GPU, or the share of a pod and why it is there.

    A GPU is named NODE/INDEX, or by its UUID or a prefix of it. Without a name, all objects of the type are described.

    \b
    Examples:
      # A node with its GPUs and the pods that share them
      kubectl gpushare describe node gpu-1
    \b
      # One GPU
      kubectl gpushare describe gpu gpu-1/0
      kubectl gpushare describe gpu GPU-6770752d31-0000
    \b
      # What a pod got, or why it waits; for a Deployment, one of its waiting pods
      kubectl gpushare describe pod trainer -n ml
      kubectl gpushare describe deploy/server -n ml
    \b
      # The same as JSON
      kubectl gpushare describe pod trainer -n ml -o json
    """
    chosen = options.collect(params)
    kind, names = _parse(arguments)
    origin = chosen_source.from_options(chosen)
    described: list[Described] = []
    missing: list[str] = []
    for name in names or ("",):
        try:
            described += FINDERS[kind](origin, name, chosen)
        except plugin_errors.KubectlNotFound as error:
            missing.append(str(error))
    _print(kind, described, chosen, several=len(names) != 1)
    if missing:
        raise plugin_errors.KubectlNotFound("; ".join(missing))
    if not described:
        where = "" if kind != "pod" or chosen.all_namespaces else f" in {_namespace(origin, chosen)} namespace"
        print(f"No {_PLURALS[kind]} found{where}.", file=sys.stderr)


_PLURALS = {"node": "GPU nodes", "gpu": "GPUs", "pod": "pods that share GPUs"}
_DOCUMENTS = {"node": "NodeDescription", "gpu": "GPUDescription", "pod": "PodDescription"}


def _parse(arguments: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    if not arguments:
        raise click.UsageError("specify what to describe: node, gpu or pod")
    word, slash, name = arguments[0].partition("/")
    if word.lower() in workloads.KINDS:
        return "pod", tuple(f"{word}/{given}" for given in ((name,) if slash else ()) + tuple(arguments[1:]))
    kind = KINDS.get(word.lower())
    if kind is None:
        raise click.UsageError(f'unknown type "{word}": write node, gpu or pod')
    return kind, ((name,) if slash else ()) + tuple(arguments[1:])


def _print(kind: str, described: Sequence[Described], chosen: options.Options, *, several: bool) -> None:
    if chosen.output:
        contents = [document() for _, document in described]
        if several:
            whole = list_document(f"{_DOCUMENTS[kind]}List", contents)
        elif contents:
            whole = single_document(_DOCUMENTS[kind], contents[0])
        else:
            return
        printing.write_document(whole, chosen)
        return
    place = terminal.detect(sys.stdout, color=chosen.color)
    for number, (page, _) in enumerate(described):
        printing.write_lines([*(["", ""] if number else []), *layout.page_lines(page(), place)], sys.stdout)


def _nodes(origin: chosen_source.Source, name: str, chosen: options.Options) -> Iterator[Described]:
    nodes = origin.gpu_nodes(label_selector=chosen.selector, name=name)
    if name and not nodes:
        raise plugin_errors.KubectlNotFound(f'no GPUNode "{name}": is it a GPU node, and does the agent run on it?')
    snapshot = chosen_source.with_profile(origin, chosen_source.with_pods(origin, nodes, node=name))
    snapshot = _with_node_objects(origin, snapshot, name)
    now = time.time()
    for node in sorted(nodes, key=lambda node: gpu_summary.natural(node.name)):
        if name:
            snapshot = _with_events(origin, snapshot, contract.GPUNODE_KIND, "", name, agents_of=[node])
        yield partial(gpu_page.node, node, snapshot, now=now), partial(gpu_page.node_document, node, snapshot)


def _with_node_objects(origin: chosen_source.Source, snapshot: Snapshot, name: str) -> Snapshot:
    """Add the Nodes, or the one of that name: they say whether pods can start there."""

    def named() -> list[NodeJson] | None:
        node_object = origin.node_object(name)
        if node_object is not None:
            return [node_object]
        return [] if isinstance(origin, live_cluster.LiveCluster) else None

    notes = list(snapshot.notes)
    node_objects = chosen_source.read(named if name else origin.node_objects, chosen_source.NODES, notes, unsaved="")
    return dataclasses.replace(snapshot, node_objects=node_objects, notes=tuple(notes))


def _with_events(
    origin: chosen_source.Source,
    snapshot: Snapshot,
    kind: str,
    namespace: str,
    name: str,
    *,
    agents_of: Sequence[GpuNode],
) -> Snapshot:
    notes = list(snapshot.notes)
    events = chosen_source.read(lambda: origin.events(kind, namespace, name), chosen_source.EVENTS, notes, unsaved="")
    usage = None
    if isinstance(origin, live_cluster.LiveCluster):
        from kubectl_gpushare.source import agents

        usage, missing = agents.ask(origin.kubectl, [node.name for node in agents_of if node.gpus])
        notes += missing
    return dataclasses.replace(
        snapshot, events=events, usage=usage if usage and usage.nodes else None, notes=tuple(notes)
    )


def _gpus(origin: chosen_source.Source, name: str, chosen: options.Options) -> Iterator[Described]:
    node = name.rpartition("/")[0]
    nodes = origin.gpu_nodes(label_selector=chosen.selector, name=node)
    profile = _with_node_objects(origin, chosen_source.with_profile(origin, Snapshot(())), node)
    absent = unavailable_nodes.find(nodes, profile.node_objects)
    every = gpu_summary.summarize(nodes, profile, absent)
    gpus = [gpu_summary.named(every, name)] if name else every
    owners = {owner.name: owner for owner in nodes}
    snapshot = chosen_source.with_pods(origin, nodes, node=gpus[0].node if name else "")
    snapshot = dataclasses.replace(snapshot, notes=(*snapshot.notes, *profile.notes))
    now = time.time()
    if name:
        node = gpus[0].node
        snapshot = _with_events(origin, snapshot, contract.GPUNODE_KIND, "", node, agents_of=[owners[node]])
    for gpu in gpus:
        shown = (gpu, owners[gpu.node], snapshot)
        yield partial(gpu_page.gpu, *shown, now=now), partial(gpu_page.gpu_document, *shown)


def _pods(origin: chosen_source.Source, name: str, chosen: options.Options) -> Iterator[Described]:
    missing = ""
    if name:
        meant = workloads.pod_meant(origin, chosen, name)
        manifests, missing = [meant.manifest], meant.missing
    else:
        namespace = "" if chosen.all_namespaces else _namespace(origin, chosen)
        manifests = origin.pods(namespace=namespace, label_selector=chosen.selector) or []
    now = time.time()
    for manifest in sorted(manifests, key=pod.namespaced_name):
        snapshot, is_known = _around(origin, manifest)
        if name:
            owner = pod.namespaced_name(manifest)
            snapshot = _with_events(origin, snapshot, "Pod", *owner, agents_of=snapshot.nodes)
        found = pod_page.find(manifest, snapshot.nodes, is_known=is_known)
        if found.needs_default_isolation:
            snapshot = chosen_source.with_profile(origin, snapshot)
        shown = (found, snapshot, missing)
        yield partial(pod_page.page, *shown, now=now), partial(pod_page.document, *shown)


def _around(origin: chosen_source.Source, manifest: pod.PodJson) -> tuple[Snapshot, bool]:
    name = pod_page.node_name(manifest)
    if not name or contract.ALLOCATION not in pod.annotations_of(manifest):
        return Snapshot(()), True
    try:
        return chosen_source.with_pods(origin, origin.gpu_nodes(name=name), node=name), True
    except plugin_errors.KubectlForbidden as error:
        return Snapshot((), None, (f"its GPUs: {error}",)), False


def _namespace(origin: chosen_source.Source, chosen: options.Options) -> str:
    return chosen.namespace or origin.default_namespace


# (source, name or empty for all, options) -> the objects of that name; raises `KubectlNotFound`.
FINDERS = {"node": _nodes, "gpu": _gpus, "pod": _pods}
