"""`defrag`: the fewest moves that make room; a plan first, and with --apply the moves."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from gpushare import contract, errors, pod
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import printing
from kubectl_gpushare.source import chosen_source, live_cluster

if TYPE_CHECKING:
    from gpushare.whatif.requesting_pod import RequestingPod

NO_WAY = 2  # exit code


@click.command(short_help="Plan or apply the fewest moves that make room for waiting pods, or for a share")
@click.argument("names", nargs=-1, metavar="[POD...]", shell_complete=candidates.pods)
@click.option("--request", metavar="0.5", help="Make room for a share with this compute")
@click.option("--memory", metavar="8Gi", help="Make room for a share with this memory")
@click.option("--gpus", metavar="N", help="Number of GPUs on one node")
@click.option(
    "--moves", type=click.IntRange(1, 10_000), metavar="N", help="Make the most of all GPUs, with at most N moves"
)
@click.option(
    "--empty-nodes", "is_emptying", is_flag=True, help="Free as many nodes as possible of shares, to remove them"
)
@click.option("--cpu-pods", "moves_cpu_only", is_flag=True, help="Also move pods without a GPU off nodes with GPUs")
@click.option("--apply", "is_applied", is_flag=True, help="Carry out the moves, and stop at the first that fails")
@options.timeout(120.0, "Time limit of one move")
@options.printed(("json", "yaml"))
@options.namespaced(candidates.namespaces, all_namespaces=False)
@options.connection(candidates.contexts)
def command(
    names: tuple[str, ...],
    request: str | None,
    memory: str | None,
    gpus: str | None,
    moves: int | None,
    is_emptying: bool,
    moves_cpu_only: bool,
    is_applied: bool,
    timeout_seconds: float,
    **params: Any,
) -> int:
    """Plan or apply the fewest moves that make room for waiting pods, or for a share.

    Without a name or a size, it plans for all waiting pods. If none waits, it plans for the largest share that can be
    made room for. The plan comes from the webhook's placement code.

    With --moves, it plans the moves that make the free parts of all GPUs most useful for what this cluster's pods ask
    for, and that let waiting pods in. A pod can take the place of the next in a chain, and several can leave one node
    together. The plan ends early if no move gains enough.

    With --empty-nodes, it frees as many nodes as possible of shares, with at most --moves moves (default: 50), nodes
    with the fewest pods first. `kubectl drain` removes their other pods. A node stays as it is if one of its pods may
    not be moved, or fits only on an empty node.

    With --cpu-pods, it also moves pods without a GPU that hold the CPU or memory which a share needs on their node. The
    scheduler chooses their new node: the plan assumes its default scores, and skips pods that would return to the same
    node. Such moves are marked "CPU only".

    Only pods that a ReplicaSet, StatefulSet or ReplicationController recreates are moved. Pods with
    gpushare.io/no-evict "true", of a higher priority than the waiting pod, of a group, or protected by a
    PodDisruptionBudget stay.

    With --apply, it evicts the pods one after the other, and stops if one is not placed again in time. Meanwhile the
    GPUs that become free are cordoned. After a killed run, the next --apply uncordons them a few minutes later. The
    exit code is 0 if there is room for all, 2 if there is none for some, and 1 for any error; --moves and --empty-nodes
    never end with 2.

    \b
    Examples:
      # What would have to move for the waiting pods?
      kubectl gpushare defrag
    \b
      # Or for one of them
      kubectl gpushare defrag waiting -n ml
    \b
      # For two whole GPUs on one node
      kubectl gpushare defrag --request 1 --gpus 2
    \b
      # What do twenty moves gain for the whole cluster?
      kubectl gpushare defrag --moves 20
    \b
      # Which nodes can be removed, and what has to move?
      kubectl gpushare defrag --empty-nodes
    \b
      # Do pods without a GPU hold the CPU that it needs?
      kubectl gpushare defrag waiting -n ml --cpu-pods
    \b
      # Carry out the moves
      kubectl gpushare defrag waiting -n ml --apply
    """
    from gpushare.defragmentation import cordons, evicting, goals, relocating
    from kubectl_gpushare.views import defrag

    sizes = {contract.REQUEST: request, contract.MEMORY: memory, contract.GPUS: gpus}
    annotations = {key: value for key, value in sizes.items() if value is not None}
    if names and annotations:
        raise click.UsageError("name pods or a size, not both")
    if (moves is not None or is_emptying) and (names or annotations):
        flag = "--empty-nodes" if is_emptying else "--moves"
        raise click.UsageError(f"{flag} is for the whole cluster: leave out the pods and the size")
    if moves_cpu_only and is_emptying:
        raise click.UsageError("--empty-nodes moves shares alone: leave out --cpu-pods")
    chosen = options.collect(params)
    origin = chosen_source.from_options(chosen)
    if is_applied and not isinstance(origin, live_cluster.LiveCluster):
        raise click.UsageError("--apply needs a cluster: files of --from are only read")
    if is_applied and isinstance(origin, live_cluster.LiveCluster):
        from kubectl_gpushare import cli, moving

        cli.interrupt_on_any_signal()
        moving.clean_up(origin, origin.gpu_nodes(), _say)
    snapshot = chosen_source.everything(origin, with_all_volumes=moves_cpu_only)
    if snapshot.pods is None:
        raise plugin_errors.PluginError("no plan without the pods: " + snapshot.notes[-1].partition(": ")[2])
    notes = list(snapshot.notes)
    budgets = evicting.Budgets.from_manifests(chosen_source.read(origin.budgets, chosen_source.BUDGETS, notes) or ())
    world = snapshot.world(claims_are_all=True)
    try:
        if names:
            wanted = [*dict(_named(origin, chosen, name) for name in names).items()]
        elif annotations:
            wanted = [("the share", goals.share(annotations))]
        else:
            wanted = goals.waiting(world, snapshot.pods)
    except errors.RequestError as error:
        raise plugin_errors.PluginError(str(error)) from error
    if is_emptying:
        plan = goals.empty_nodes(world, budgets, max_moves=moves or 50)
    elif moves is not None:
        plan = relocating.plan(world, wanted, budgets, max_moves=moves, moves_cpu_only=moves_cpu_only)
    elif wanted:
        plan = goals.make_room(world, wanted, budgets, stay=not annotations, moves_cpu_only=moves_cpu_only)
    else:
        plan = goals.largest_hole(world, budgets, moves_cpu_only=moves_cpu_only)
    kept = cordons.sentences(snapshot.nodes, now=time.time())
    printing.show_page(
        "DefragmentationPlan",
        lambda: defrag.page(plan, notes, kept),
        lambda: defrag.document(plan, [*kept, *notes]),
        chosen,
    )
    if is_applied and isinstance(origin, live_cluster.LiveCluster):
        moving.apply(plan, origin, _say, timeout_seconds=timeout_seconds)
    is_for_all = is_emptying or moves is not None
    return 0 if is_for_all or all(step.gpus for step in plan.steps) else NO_WAY


def _named(origin: chosen_source.Source, chosen: options.Options, word: str) -> tuple[str, RequestingPod]:
    from gpushare.defragmentation import goals
    from gpushare.whatif import requesting_pod

    manifest = chosen_source.pod_named(origin, chosen, word)
    asked = requesting_pod.RequestingPod.from_manifest(manifest)
    if reason := goals.pointless(manifest, asked):
        raise plugin_errors.PluginError(reason)
    return "/".join(pod.namespaced_name(manifest)), asked


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # a closed terminal does not stop the moves
        printing.write_words([line], sys.stderr)
