"""`defrag`: the fewest moves that make room; a plan first, and with --apply the moves."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from gpushare import contract, errors, pod
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import page_layout, printing
from kubectl_gpushare.source import chosen_source, live_cluster

if TYPE_CHECKING:
    from gpushare.whatif import world as worlds

NO_WAY = 2  # exit code
_MOVES = 50


@click.command(short_help="Plan the fewest moves that make room for what waits, or for a share; and make them")
@click.argument("names", nargs=-1, metavar="[POD...]", shell_complete=candidates.pods)
@click.option("--request", metavar="0.5", help="Make room for a share with so much compute")
@click.option("--memory", metavar="8Gi", help="Make room for a share with so much memory")
@click.option("--gpus", metavar="N", help="On so many GPUs of one node")
@click.option(
    "--moves",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Make the most of all GPUs, whoever waits, by so many moves at most",
)
@click.option("--empty-nodes", "is_emptying", is_flag=True, help="Empty as many nodes as possible, to take them away")
@click.option("--cpu-pods", "moves_cpu_only", is_flag=True, help="Move pods without a GPU, too, off nodes with GPUs")
@click.option("--apply", "is_applied", is_flag=True, help="Make the moves, and stop at the first that fails")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(1, 3600),
    default=120.0,
    metavar="SECONDS",
    help="How long one move may take (default: 120)",
)
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
    """Plan the fewest moves that make room for what waits, or for a share; and make them.

    Without a name and a size: for all pods that wait, or if none does, for the largest hole that can be made. The plan
    is found by playing it with the webhook's placement code; GPUs that are to become free take nothing new meanwhile.

    With --moves: the moves, chains of moves in which each pod takes the place of the next, and pods that leave one node
    together for one that waits, by which the cluster's GPUs come to be worth most: what is free of them to what the
    pods here ask for, as the policy fragmentation sees it, and those that wait and can then be let in. It ends earlier
    if nothing gains enough.

    With --empty-nodes: as many nodes as possible come to have no share any more, by so many --moves at most (default:
    50), those with the fewest pods first; their other pods are for `kubectl drain`. Nodes stay as they are if one of
    their pods may not be moved, or finds a place only on a node that has none.

    With --cpu-pods: pods without a GPU are moved, too, where they hold the CPU or the memory that a share needs on
    their node. The scheduler says where their successors go, as it does with any pod: the plan has the node that its
    default scores prefer, and moves none that would go back to the node that it left. Such moves are marked "CPU only".

    Only pods that a ReplicaSet or a StatefulSet recreates are moved, never one with gpushare.io/no-evict "true", of a
    higher priority than the pod that waits, of a group, or that a PodDisruptionBudget protects. With --apply they are
    evicted one after the other; if one is not placed again in time, the rest is left as it is. GPUs that are to become
    free are cordoned meanwhile; should it be killed, an --apply some minutes later uncordons them. The exit code is 0
    if there is a way for all, 2 if there is none for something, and 1 for any error; --moves and --empty-nodes never
    end with 2.

    \b
    Examples:
      # What would have to move for the pods that wait?
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
      # Which nodes can be taken away, and what has to move for that?
      kubectl gpushare defrag --empty-nodes
    \b
      # Do pods without a GPU hold the CPU that it needs?
      kubectl gpushare defrag waiting -n ml --cpu-pods
    \b
      # Do it
      kubectl gpushare defrag waiting -n ml --apply
    """
    from gpushare.defragmentation import cordons, emptying, evicting, fewest_moves, goals, relocating
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
    origin = chosen_source.of(chosen)
    if is_applied and not isinstance(origin, live_cluster.LiveCluster):
        raise click.UsageError("--apply needs a cluster: files of --from are only read")
    if is_applied and isinstance(origin, live_cluster.LiveCluster):
        from kubectl_gpushare import closing, interruption

        interruption.by_any_signal()
        closing.clean_up(origin, origin.gpu_nodes(), _say)
    snapshot = chosen_source.everything(origin, with_all_volumes=moves_cpu_only)
    if snapshot.pods is None:
        raise plugin_errors.PluginError("no plan without the pods: " + snapshot.notes[-1].partition(": ")[2])
    declared, notes = chosen_source.budgets(origin)
    budgets = evicting.Budgets.of(declared)
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
        plan = emptying.plan(world, budgets, most=moves or _MOVES)
    elif moves is not None:
        plan = relocating.plan(world, wanted, budgets, most=moves, moves_cpu_only=moves_cpu_only)
    elif wanted:
        plan = fewest_moves.plan(world, wanted, budgets, stay=not annotations, moves_cpu_only=moves_cpu_only)
    else:
        plan = goals.largest_hole(world, budgets, moves_cpu_only=moves_cpu_only)
    kept = cordons.sentences(snapshot.nodes, now=time.time())
    all_notes = [*snapshot.notes, *notes]
    page_layout.show(
        "DefragmentationPlan",
        lambda: defrag.page(plan, all_notes, kept),
        lambda: defrag.document(plan, [*kept, *all_notes]),
        chosen,
    )
    if is_applied and isinstance(origin, live_cluster.LiveCluster):
        from kubectl_gpushare import moving

        moving.apply(plan, origin, _say, timeout_seconds=timeout_seconds)
    is_for_all = is_emptying or moves is not None
    return 0 if is_for_all or all(step.gpus for step in plan.steps) else NO_WAY


def _named(origin: chosen_source.Source, chosen: options.Options, word: str) -> tuple[str, worlds.RequestingPod]:
    from gpushare.defragmentation import goals
    from gpushare.whatif import world as worlds

    manifest = chosen_source.pod_named(origin, chosen, word)
    asked = worlds.RequestingPod.of(manifest)
    if reason := goals.pointless(manifest, asked):
        raise plugin_errors.PluginError(reason)
    return "/".join(pod.namespaced_name(manifest)), asked


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # a closed terminal does not stop the moves
        printing.write_words([line], sys.stderr)
