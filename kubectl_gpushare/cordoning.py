"""Cordoning: GPUs that take nothing new, by one compare-and-swap of each GPUNode's `spec.cordoned`."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from gpushare import contract
from gpushare.defragmentation import cordons
from gpushare.defragmentation.cordons import CordonChange
from gpushare.gpunode import GpuNode
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import printing
from kubectl_gpushare.source import chosen_source, live_cluster
from kubectl_gpushare.views import gpu_summary

_ATTEMPTS = 5  # at the compare-and-swap: others write the GPUNode too


def command(verb: str, help_text: str, short_help: str, *, cordoned: bool) -> click.Command:
    """`cordon` or `uncordon`."""

    @click.command(verb, short_help=short_help, help=help_text)
    @click.argument("arguments", nargs=-1, metavar="gpu NAME...", shell_complete=candidates.cordon)
    @click.option("--dry-run", is_flag=True, help="Ask the API server whether it would do it, and change nothing")
    @options.connection(candidates.contexts)
    def run(arguments: tuple[str, ...], dry_run: bool, **params: Any) -> None:
        chosen = options.collect(params)
        origin = chosen_source.of(chosen)
        names = _names(arguments)
        if not isinstance(origin, live_cluster.LiveCluster):
            raise click.UsageError(f"{verb} needs a cluster: files of --from are only read")
        cards = [_card(origin, name) for name in names]
        for node in dict.fromkeys(card.node for card in cards):
            cards_of_it = [card for card in cards if card.node == node]
            printing.write_words(_change(origin, node, cards_of_it, cordoned, dry_run), sys.stdout)

    return run


def _names(arguments: Sequence[str]) -> list[str]:
    if arguments and arguments[0] in {"node", "nodes", "no"}:
        raise click.UsageError(_whole_node(arguments[1] if len(arguments) > 1 else "NODE"))
    if arguments and arguments[0] in {"gpu", "gpus"}:
        arguments = arguments[1:]
    names = [name.removeprefix("gpu/") for name in arguments]
    if not names:
        raise click.UsageError("say which: gpu NODE/INDEX, or a UUID")
    return names


def _whole_node(name: str) -> str:
    return f"a GPU is named as NODE/INDEX, such as {name}/0: a whole node takes `kubectl cordon {name}`, or uncordon"


def _card(origin: live_cluster.LiveCluster, name: str) -> gpu_summary.GpuSummary:
    node = name.rpartition("/")[0]
    nodes = origin.gpu_nodes(name=node)
    if any(gpu_node.name == name for gpu_node in nodes):
        raise plugin_errors.KubectlNotFound(f"{name} is a node: {_whole_node(name)}")
    card = gpu_summary.named(gpu_summary.of(nodes), name)
    if card.gone:
        raise plugin_errors.KubectlNotFound(f'{card.node} has no GPU "{card.gpu.uuid}" any more')
    return card


def _change(
    origin: live_cluster.LiveCluster, node: str, cards: Sequence[gpu_summary.GpuSummary], cordoned: bool, dry_run: bool
) -> Iterator[str]:
    uuids = frozenset(card.gpu.uuid for card in cards)

    def change(now: GpuNode) -> CordonChange:
        # A cordon set by hand is final: remove the mark by which `defrag` would undo it.
        marks = dict.fromkeys(uuids & cordons.of(now).keys())
        return CordonChange(now.cordoned | uuids if cordoned else now.cordoned - uuids, marks)

    before = swap(origin, node, change, dry_run=dry_run).cordoned
    word = "cordoned" if cordoned else "uncordoned"
    for card in cards:
        already = "already " if (card.gpu.uuid in before) is cordoned else ""
        yield f"{card.name} {already}{word}{_stay(card, cordoned)}{' (dry run)' * dry_run}"


def swap(
    origin: live_cluster.LiveCluster, node: str, change: Callable[[GpuNode], CordonChange], *, dry_run: bool = False
) -> GpuNode:
    """Applies `change` to the current GPUNode by compare-and-swap; returns the GPUNode as it was before."""
    for attempt in itertools.count(1):
        nodes = origin.gpu_nodes(name=node)
        if not nodes:
            raise plugin_errors.KubectlNotFound(f"the GPUNode {node} is gone")
        before, after = nodes[0], change(nodes[0])
        if after.cordoned == before.cordoned and not after.marks:
            return before
        metadata: dict[str, Any] = {"resourceVersion": before.version}
        if after.marks:
            metadata["labels"] = cordons.labels(after.marks)
        patch = {"metadata": metadata, "spec": {"cordoned": sorted(after.cordoned)}}
        try:
            origin.kubectl.patch(f"{contract.GPUNODE_PLURAL}.{contract.GROUP_NAME}", node, json.dumps(patch), dry_run)
        except plugin_errors.KubectlConflict:
            if attempt == _ATTEMPTS:
                raise
        else:
            return before
    raise AssertionError("there is always another attempt")


def _stay(card: gpu_summary.GpuSummary, cordoned: bool) -> str:
    count = len([holder for holder in card.used.holders if not holder.is_hold])
    if not cordoned or not count:
        return ""
    return f": {count} pod{'' if count == 1 else 's'} stay{'s' if count == 1 else ''} on it"
