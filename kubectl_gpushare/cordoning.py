"""`cordon` and `uncordon` of GPUs, by one compare-and-swap of each GPUNode's `spec.cordoned`."""

from __future__ import annotations

import datetime
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from gpushare import contract, gpunode
from gpushare.defragmentation import cordons
from gpushare.defragmentation.cordons import CordonChange
from gpushare.gpunode import CordonNote, GpuNode
from gpushare.quantity import counted
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import printing
from kubectl_gpushare.source import chosen_source, live_cluster
from kubectl_gpushare.views import gpu_summary

_GPU, _NODE = ("gpu", "gpus"), ("node", "nodes", "no")  # words before names
_WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_WHO_BODY = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
_ATTEMPTS = 5  # at the compare-and-swap: others write the GPUNode too


def _command(verb: str, help_text: str, short_help: str, *, cordoned: bool) -> click.Command:
    @click.command(verb, short_help=short_help, help=help_text)
    @click.argument("arguments", nargs=-1, metavar="gpu|node NAME...", shell_complete=candidates.cordon)
    @_reason(cordoned)
    @click.option("--dry-run", is_flag=True, help="Let the API server check the change, without making it")
    @options.connection(candidates.contexts)
    def run(arguments: tuple[str, ...], dry_run: bool, reason: str | None = None, **params: Any) -> None:
        chosen = options.collect(params)
        origin = chosen_source.from_options(chosen)
        names = _names(arguments)
        if not isinstance(origin, live_cluster.LiveCluster):
            raise click.UsageError(f"{verb} needs a cluster: files of --from are only read")
        is_node = arguments[0] in _NODE
        done = change(origin, names, is_node=is_node, cordoned=cordoned, reason=reason, dry_run=dry_run)
        for sentence in done:
            printing.write_words([sentence], sys.stdout)

    return run


def change(
    origin: live_cluster.LiveCluster,
    names: Sequence[str],
    *,
    is_node: bool,
    cordoned: bool,
    reason: str | None = None,
    dry_run: bool = False,
) -> Iterator[str]:
    """Cordon or uncordon GPUs, or all GPUs of nodes, node by node; yield what was done to each."""
    gpus = [gpu for name in names for gpu in (_of_node if is_node else _named)(origin, name)]
    note = _note(origin, reason) if cordoned else None
    for node in dict.fromkeys(gpu.node for gpu in gpus):
        yield from _change(origin, node, [gpu for gpu in gpus if gpu.node == node], note, dry_run)


def _reason(cordoned: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    if not cordoned:
        return lambda function: function
    return click.option("--reason", metavar="TEXT", help="Why, for `describe gpu` and `top -o wide`")


def _note(origin: live_cluster.LiveCluster, reason: str | None) -> CordonNote:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        user = json.loads(origin.kubectl.create(_WHO, json.dumps(_WHO_BODY)))["status"]["userInfo"]["username"]
    except (plugin_errors.KubectlError, ValueError, KeyError, TypeError):
        user = ""  # an API server that does not return it
    return CordonNote(str(user), now, " ".join((reason or "").split()))


def _names(arguments: Sequence[str]) -> list[str]:
    names = list(arguments[1:] if arguments and arguments[0] in {*_GPU, *_NODE} else arguments)
    if not names:
        raise click.UsageError("specify the GPU or the node: gpu NODE/INDEX, gpu UUID or node NODE")
    return [name.removeprefix("gpu/") for name in names]


def _of_node(origin: live_cluster.LiveCluster, name: str) -> list[gpu_summary.GpuSummary]:
    gpus = [gpu for gpu in gpu_summary.summarize(origin.gpu_nodes(name=name)) if not gpu.gone]
    if not gpus:
        raise plugin_errors.KubectlNotFound(f'no node "{name}" with GPUs: `kubectl gpushare top nodes` lists them')
    return gpus


def _named(origin: live_cluster.LiveCluster, name: str) -> list[gpu_summary.GpuSummary]:
    node = name.rpartition("/")[0]
    nodes = origin.gpu_nodes(name=node)
    if any(gpu_node.name == name for gpu_node in nodes):
        raise plugin_errors.KubectlNotFound(
            f"{name} is a node: write {name}/0 for its first GPU, or node {name} for all of them"
        )
    gpu = gpu_summary.named(gpu_summary.summarize(nodes), name)
    if gpu.gone:
        raise plugin_errors.KubectlNotFound(f'{gpu.node} has no GPU "{gpu.gpu.uuid}" any more')
    return [gpu]


def _change(
    origin: live_cluster.LiveCluster,
    node: str,
    gpus: Sequence[gpu_summary.GpuSummary],
    note: CordonNote | None,
    dry_run: bool,
) -> Iterator[str]:
    uuids, cordoned = frozenset(gpu.gpu.uuid for gpu in gpus), note is not None

    def change(now: GpuNode) -> CordonChange:
        # A cordon set by hand stays: remove the mark by which `defrag` would undo it.
        marks = dict.fromkeys(uuids & cordons.read(now).keys())
        if note is None:
            return CordonChange(now.cordoned - uuids, marks, dict.fromkeys(uuids & now.cordon_notes.keys()))
        noted = uuids if note.reason else uuids - now.cordoned
        return CordonChange(now.cordoned | uuids, marks, dict.fromkeys(noted, note))

    before = swap(origin, node, change, dry_run=dry_run).cordoned
    word = "cordoned" if cordoned else "uncordoned"
    for gpu in gpus:
        already = "already " if (gpu.gpu.uuid in before) is cordoned else ""
        count = sum(not holder.is_backfill_reservation for holder in gpu.used.holders)
        stays = f": {counted(count, 'pod')} stay{'s' if count == 1 else ''} on it"
        stay = stays if cordoned and count else ""
        yield f"{gpu.name} {already}{word}{stay}{' (dry run)' * (dry_run and not already)}"


def swap(
    origin: live_cluster.LiveCluster, node: str, change: Callable[[GpuNode], CordonChange], *, dry_run: bool = False
) -> GpuNode:
    """Apply `change` to the current GPUNode by compare-and-swap; return the GPUNode as it was before."""
    for attempt in itertools.count(1):
        nodes = origin.gpu_nodes(name=node)
        if not nodes:
            raise plugin_errors.KubectlNotFound(f"the GPUNode {node} is gone")
        before, after = nodes[0], change(nodes[0])
        if after.cordoned == before.cordoned and not after.marks and not after.notes:
            return before
        metadata: dict[str, Any] = {"resourceVersion": before.version}
        if after.marks:
            metadata["labels"] = cordons.labels(after.marks)
        if after.notes:
            metadata["annotations"] = gpunode.cordon_annotations(after.notes)
        patch = {"metadata": metadata, "spec": {"cordoned": sorted(after.cordoned)}}
        try:
            origin.kubectl.patch(f"{contract.GPUNODE_PLURAL}.{contract.GROUP_NAME}", node, json.dumps(patch), dry_run)
        except plugin_errors.KubectlConflict:
            if attempt == _ATTEMPTS:
                raise
        else:
            return before
    raise AssertionError("there is always another attempt")


cordon = _command(
    "cordon",
    """Keep new pods off a GPU; those on it stay.

    A GPU is named as NODE/INDEX, or by its UUID or the beginning of it; `node` means all GPUs of a node, which still
    takes other pods (`kubectl cordon` keeps those off). The GPUNode records who cordoned a GPU, when and why. Needs
    permission to patch GPUNodes.

    \b
    Examples:
      # Keep new pods off one GPU
      kubectl gpushare cordon gpu gpu-1/0 --reason "ECC errors, ticket 4711"
    \b
      # Keep new pods off all GPUs of a node
      kubectl gpushare cordon node gpu-1
    \b
      # Check whether you may cordon two GPUs, and change nothing
      kubectl gpushare cordon gpu gpu-1/0 gpu-1/1 --dry-run
    """,
    "Keep new pods off a GPU",
    cordoned=True,
)

uncordon = _command(
    "uncordon",
    """Allow new pods on a GPU again.

    A GPU is named as NODE/INDEX, or by its UUID or the beginning of it; `node` means all GPUs of a node. Needs
    permission to patch GPUNodes.

    \b
    Examples:
      # One GPU is back in service
      kubectl gpushare uncordon gpu gpu-1/0
    \b
      # Named by the beginning of its UUID
      kubectl gpushare uncordon gpu GPU-6770752d31-0000
    """,
    "Allow new pods on a GPU again",
    cordoned=False,
)
