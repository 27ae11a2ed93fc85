"""`top`: shows what each GPU, node or pod has and uses, what is free, and what else fits."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.source import chosen_source, live_cluster

# Views, and code that reads GPUNodes, are imported while kubectl waits for the API server.
if TYPE_CHECKING:
    from gpushare.gpunode import GpuNode
    from kubectl_gpushare.output.values import Listing
    from kubectl_gpushare.source.snapshot import Snapshot

_WITHOUT_TEXTUAL = (
    "-i needs textual, which {python} lacks: install the plugin with its extra, gpushare[tui], or run "
    "`{python} -m pip install textual`"
)

_AROUND_SECONDS = 15.0  # between two reads of Nodes and the profile with -w

KINDS = {
    **dict.fromkeys(("gpus", "gpu"), "gpus"),
    **dict.fromkeys(("nodes", "node", "no"), "nodes"),
    **dict.fromkeys(("pods", "pod", "po"), "pods"),
}
_SHARED_KEYS = ("compute", "memory", "pods", "free", "largest", "frag", "status", "used", "busy")
# The columns that each kind can be sorted by; the views have the sort functions.
SORT_KEYS = {
    "gpus": ("name", "model", "mode", *_SHARED_KEYS),
    "nodes": ("name", "gpus", "model", *_SHARED_KEYS),
    "pods": ("name", "gpus", "compute", "request", "limit", "memory", "used", "busy", "status", "age"),
}


@click.command(short_help="Show what is allocated, used and free, one line per GPU, node or pod")
@click.argument("arguments", nargs=-1, metavar="[gpus|nodes|pods] [NAME...]", shell_complete=candidates.top)
@click.option(
    "--usage/--no-usage", default=None, help="Ask the agent of each node for the actual usage (default: on few nodes)"
)
@click.option("-i", "--interactive", is_flag=True, help="Walk through nodes, GPUs and pods as a tree; ? lists its keys")
@options.listed(tuple(dict.fromkeys(key for keys in SORT_KEYS.values() for key in keys)))
@options.printed(options.LISTS)
@options.selector
@options.namespaced(candidates.namespaces)
@options.connection(candidates.contexts)
def command(arguments: tuple[str, ...], usage: bool | None, interactive: bool, **params: Any) -> int | None:
    """Show what is allocated, used and free, one line per GPU, node or pod.

    COMPUTE and MEMORY are allocated/total. A pod with 8Gi+4Gi is lent 4Gi beyond its 8Gi. USED is the memory that
    processes hold. BUSY is the part of the GPUs' time in which kernels ran, over about ten seconds, as busy/all GPUs:
    0.5/1 is half of one GPU's time, 3/4 three GPUs of four. Parts that are not measured are unknown, and their sum is
    the least that is used: ≥0.5/4.

    FREE is the compute and memory for new shares in total, LARGEST for one pod without labels. FRAG is the part of the
    free space that the typical request cannot use.

    STATUS also marks nodes that take no pods: NodeCordoned, NotReady, NoAgent, NoNode. A waiting pod shows what it asks
    for. Reserved:41s is a share that expires in 41 seconds unless its pod appears.

    With -n, only GPUs and nodes with pods of the namespace are shown. -l selects by the labels of Nodes, or of pods in
    `top pods`.

    \b
    Examples:
      # All GPUs of the cluster
      kubectl gpushare top
    \b
      # The GPUs of two nodes, with their UUIDs and places
      kubectl gpushare top gpus gpu-1 gpu-2 -o wide
    \b
      # A line per node, most fragmented first
      kubectl gpushare top nodes --sort-by frag
    \b
      # The pods of all namespaces, busiest first, updated on every change
      kubectl gpushare top pods -A --sort-by busy -w
    \b
      # Walk through the cluster; w explains why a pod waits
      kubectl gpushare top -i
    \b
      # From saved objects, without a cluster
      kubectl get gpunodes -o yaml > nodes.yaml
      kubectl gpushare top --from nodes.yaml
    """
    chosen = options.collect(params)
    kind, names = _parse(arguments)
    if chosen.sort_by and chosen.sort_by not in SORT_KEYS[kind]:
        raise click.UsageError(f'{kind} have no column "{chosen.sort_by}" to sort by')
    if interactive:
        if not _at_a_terminal():
            raise click.UsageError("-i needs a terminal: leave it out, or use -w to follow changes in a pipe")
        if arguments or chosen.watch or chosen.output or chosen.no_headers or chosen.sort_by == "mode":
            raise click.UsageError("-i shows the whole tree: leave out names, -w, -o, --no-headers and --sort-by mode")
    if chosen.sort_by in {"used", "busy"}:  # they need the agents' figures
        if usage is False:
            raise click.UsageError(f"--sort-by {chosen.sort_by} cannot be combined with --no-usage")
        usage = True
    origin = chosen_source.from_options(chosen)
    if usage and not isinstance(origin, live_cluster.LiveCluster):
        raise click.UsageError("--usage needs a cluster: files of --from do not tell what is used")
    if kind == "pods" and not chosen.all_namespaces and not chosen.namespace:
        chosen = dataclasses.replace(chosen, namespace=origin.default_namespace)
    # `top pods` applies -l to pods instead of Nodes.
    node_selector = "" if kind == "pods" else chosen.selector
    make = Maker(kind, names, chosen, origin, usage)
    if interactive:
        return _interactive(origin, make, chosen)
    if chosen.watch:
        if not isinstance(origin, live_cluster.LiveCluster):
            raise click.UsageError("--watch needs a cluster: files of --from do not change")
        from kubectl_gpushare import following

        following.follow(origin, make, chosen, label_selector=node_selector)
        return None
    if isinstance(origin, live_cluster.LiveCluster):
        origin.begin(node_objects=kind != "pods")
    try:
        from kubectl_gpushare.output import printing
        from kubectl_gpushare.views import gpu_summary

        _listing(kind)  # imported while kubectl waits for the API server
        gpu_nodes = origin.gpu_nodes(label_selector=node_selector)
        missing = [] if kind == "pods" else _missing(gpu_nodes, names)
        if len(missing) < len(names) or not names:
            listing = make(gpu_nodes)
            printing.show(listing, chosen)
            if not gpu_nodes and not node_selector:
                print(gpu_summary.NO_NODES, file=sys.stderr)
            printing.warn(listing.problems())
            if kind == "pods":
                shown = {name.rpartition("/")[2] for name in listing.names()}
                missing = [name for name in names if name not in shown]
    finally:
        if isinstance(origin, live_cluster.LiveCluster):
            origin.end()
    if missing:
        what = "pod that shares GPUs" if kind == "pods" else "node or GPU"
        raise plugin_errors.KubectlNotFound("; ".join(f'no {what} "{name}"' for name in missing))
    return None


def _at_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _interactive(origin: chosen_source.Source, make: Maker, chosen: options.Options) -> int:
    """Run `top -i`; return its exit code."""
    if isinstance(origin, live_cluster.LiveCluster):
        origin.begin(node_objects=True)
    try:
        from kubectl_gpushare.interactive import tree_app

        return tree_app.run(origin, make.snapshot, chosen)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise plugin_errors.PluginError(_WITHOUT_TEXTUAL.format(python=sys.executable)) from error
    finally:
        if isinstance(origin, live_cluster.LiveCluster):
            origin.end()


class Maker:
    """Builds the table from GPUNodes, and reads Nodes and the placer's profile again after _AROUND_SECONDS."""

    def __init__(
        self, kind: str, names: Sequence[str], chosen: options.Options, origin: chosen_source.Source, usage: bool | None
    ) -> None:
        self._kind = kind
        self._names = names
        self._chosen = chosen
        self._origin = origin
        self._usage = usage
        self._cluster: Snapshot | None = None
        self._read_at = 0.0  # monotonic

    def __call__(self, gpu_nodes: Sequence[GpuNode]) -> Listing:
        return _listing(self._kind)(self.snapshot(gpu_nodes), self._names, self._chosen, now=time.time())

    def snapshot(self, gpu_nodes: Sequence[GpuNode]) -> Snapshot:
        return self._with_usage(self._snapshot(gpu_nodes))

    def _snapshot(self, gpu_nodes: Sequence[GpuNode]) -> Snapshot:
        from kubectl_gpushare.source.snapshot import Snapshot

        if self._kind == "pods":
            namespace, selector = self._chosen.namespace, self._chosen.selector
            return chosen_source.with_pods(self._origin, list(gpu_nodes), namespace=namespace, label_selector=selector)
        if not gpu_nodes:
            return Snapshot(())
        if self._cluster is None or time.monotonic() - self._read_at >= _AROUND_SECONDS:
            notes: list[str] = []
            node_objects = chosen_source.read(self._origin.node_objects, chosen_source.NODES, notes, unsaved="")
            cluster = Snapshot((), node_objects=node_objects, notes=tuple(notes))
            self._cluster = chosen_source.with_profile(self._origin, cluster)
            self._read_at = time.monotonic()
        return dataclasses.replace(self._cluster, nodes=tuple(gpu_nodes))

    def _with_usage(self, snapshot: Snapshot) -> Snapshot:
        """Add what the agents measure, unless there are many agents and --usage is not given."""
        if not isinstance(self._origin, live_cluster.LiveCluster) or self._usage is False:
            return snapshot
        from kubectl_gpushare.source import agents

        wanted = {name.partition("/")[0] for name in self._names}
        nodes = [node.name for node in snapshot.nodes if node.gpus and (not wanted or node.name in wanted)]
        if self._usage is None and len(nodes) > agents.ASKED_UNASKED:
            return snapshot
        used, notes = agents.ask(self._origin.kubectl, nodes)
        # One line, however many rights are missing.
        notes = tuple(filter(None, ["; ".join((*snapshot.notes, *notes))]))
        return dataclasses.replace(snapshot, usage=used if used.nodes else None, notes=notes)


def _parse(arguments: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    if not arguments:
        return "gpus", ()
    kind = KINDS.get(arguments[0].lower())
    if kind is None:
        raise click.UsageError(
            f'unknown type "{arguments[0]}": write gpus, nodes or pods before names, as in `top gpus {arguments[0]}`'
        )
    if kind == "nodes" and any("/" in name for name in arguments[1:]):
        raise click.UsageError("a node's name has no slash: write `top gpus NODE/INDEX` for one GPU")
    if kind == "pods" and any("/" in name for name in arguments[1:]):
        raise click.UsageError("a pod's name has no slash: write `top pods POD -n NAMESPACE`")
    return kind, tuple(arguments[1:])


def _listing(kind: str) -> Callable[..., Listing]:
    if kind == "pods":
        from kubectl_gpushare.views import pod_table

        return pod_table.listing
    from gpushare import placement_profile  # noqa: F401 - not once the GPUNodes are there

    if kind == "nodes":
        from kubectl_gpushare.views import node_table

        return node_table.listing
    from kubectl_gpushare.views import gpu_table

    return gpu_table.listing


def _missing(nodes: Sequence[GpuNode], names: Sequence[str]) -> list[str]:
    known = {node.name for node in nodes} | {f"{node.name}/{gpu.index}" for node in nodes for gpu in node.gpus}
    return [name for name in names if name not in known]
