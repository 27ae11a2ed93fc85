"""`simulate`: pods that arrive and end on a cluster in memory."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import click

from gpushare import errors
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import printing
from kubectl_gpushare.output.values import single_document
from kubectl_gpushare.source import chosen_source


@click.command(short_help="Simulate how pods from files or a trace would be placed, as a table and a plot")
@options.file(
    "filenames",
    "-f",
    "--filename",
    multiple=True,
    help="Pods or workloads, in JSON or YAML, that arrive one after the other; may be repeated",
)
@click.option(
    "--trace",
    type=click.Path(allow_dash=True),
    metavar="FILE.csv",
    help="Pods that come and go: columns name, start, duration, request, memory, gpus, …",
)
@click.option(
    "count", "--repeat", type=click.IntRange(1, 10000), default=1, metavar="N", help="Create each pod of -f N times"
)
@click.option(
    "made_up",
    "--nodes",
    multiple=True,
    metavar="NxG[:MODEL[:MEMORY]]",
    help="Made-up nodes instead of the cluster's, N with G GPUs each, by default A100-SXM4-80GB; may be repeated",
)
@click.option("--empty", is_flag=True, help="Use the nodes of the cluster without their pods")
@click.option("--plot", type=click.Path(), metavar="FILE", help="Also draw a plot as FILE.svg")
@options.printed(("table", "json", "yaml"))
@options.connection(candidates.contexts)
def command(
    filenames: tuple[str, ...],
    trace: str | None,
    count: int,
    made_up: tuple[str, ...],
    empty: bool,
    plot: str | None,
    **params: Any,
) -> None:
    """Simulate how pods from files or a trace would be placed, as a table and a plot.

    The webhook's placement code places the pods in order, and a pod that does not fit waits until others have ended.
    The cluster is that of the context or of --from, or a made-up one. It creates nothing.

    \b
    Examples:
      # A hundred half GPUs on ten made-up nodes
      kubectl gpushare simulate -f half-gpu.yaml --repeat 100 --nodes 10x8
    \b
      # A trace on the nodes of a saved cluster, with a plot
      kubectl gpushare simulate --trace trace.csv --from cluster.yaml --empty --plot simulated.svg
    \b
      # Two kinds of nodes
      kubectl gpushare simulate --trace trace.csv --nodes 2x8 --nodes "4x4:Tesla T4:16Gi" -o json
    """
    from gpushare import ledger
    from gpushare.whatif import requesting_pod
    from gpushare.whatif import world as worlds
    from kubectl_gpushare.planning import simulation
    from kubectl_gpushare.source import pod_files
    from kubectl_gpushare.views import simulate

    chosen = options.collect(params)
    if bool(filenames) == bool(trace):
        raise click.UsageError("specify the pods: either -f FILE or --trace FILE.csv")
    if plot and Path(plot).suffix != ".svg":
        raise click.UsageError(f"--plot draws SVG: write {Path(plot).with_suffix('.svg')}")
    lines = pod_files.read_trace(trace) if trace else []
    for path in filenames:
        for workload in pod_files.read(path, namespace="simulated"):
            copies = (pod_files.copied(workload.pod, number) for number in range(workload.count * count))
            lines += [pod_files.TracePod(0.0, None, copy) for copy in copies]
    arrivals = []
    for line in lines:
        try:
            asked = requesting_pod.RequestingPod.from_manifest(line.pod)
        except errors.RequestError as error:
            raise plugin_errors.PluginError(f"{line.pod['metadata']['name']}: {error}") from error
        arrivals.append(simulation.Arrival(line.start_seconds, line.duration_seconds, asked))
    if made_up:
        world = worlds.World(node for text in made_up for node in pod_files.made_up_nodes(text))
        notes: tuple[str, ...] = ()
    else:
        origin = chosen_source.from_options(chosen)
        snapshot = chosen_source.everything(origin, [arrival.asked.manifest for arrival in arrivals])
        if empty:
            nodes = (ledger.release(node, [entry.id for entry in node.allocations]) for node in snapshot.nodes)
            snapshot = dataclasses.replace(snapshot, nodes=tuple(nodes), pods=())
        world = snapshot.world()
        notes = (*snapshot.notes, *world.unknown_claims(arrival.asked.manifest for arrival in arrivals))
    outcome = simulation.run(world, arrivals)
    if plot:
        try:
            Path(plot).write_text(simulate.picture(outcome))
        except OSError as error:
            raise plugin_errors.FileError(f"{plot} cannot be written: {error.strerror}") from error
    if chosen.output in printing.DOCUMENTS:
        printing.write_document(single_document("Simulation", simulate.document(outcome)), chosen)
    else:
        printing.show_table(simulate.table(outcome), chosen)
        print(simulate.summary(outcome), file=sys.stderr)
    printing.warn(notes)
