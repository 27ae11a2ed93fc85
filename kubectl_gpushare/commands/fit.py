"""`fit`: whether pods would fit now, where they would go, and how many more, or why one does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from gpushare import contract, errors, pod, policies
from gpushare.allocation import Isolation
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import printing
from kubectl_gpushare.source import chosen_source

if TYPE_CHECKING:
    from gpushare.whatif.world import World
    from kubectl_gpushare.planning.capacity import CapacityAnswer
    from kubectl_gpushare.source.pod_files import Manifest

DOES_NOT_FIT = 2  # exit code

# Flag -> annotation of a pod, an example, and help.
ASKED: Final = {
    "request": (contract.REQUEST, "0.5", 'Guaranteed compute as a fraction of one GPU, such as 0.5, "50%" or 500m'),
    "limit": (contract.LIMIT, "1", "Maximum compute while the GPU has idle time"),
    "memory": (contract.MEMORY, "8Gi", "Device memory, such as 8Gi or 25%"),
    "memory_limit": (contract.MEMORY_LIMIT, "24Gi", "Maximum memory while other shares leave some free"),
    "gpus": (contract.GPUS, "N", "Number of GPUs on one node, each with this share"),
    "model": (contract.MODEL, "MODEL", "Accepted models, such as A100,H100"),
    "min_memory": (contract.MIN_MEMORY, "40Gi", "Minimum memory of the whole GPU"),
    "isolation": (contract.ISOLATION, "KIND", f"{', '.join(Isolation)}, or auto"),
    "policy": (contract.POLICY, "NAME", ", ".join(policies.POLICIES)),
}


def _flags(function: Any) -> Any:
    for name, (_, metavar, text) in reversed(ASKED.items()):
        complete = candidates.policies if name == "policy" else None
        flag = f"--{name.replace('_', '-')}"
        function = click.option(name, flag, metavar=metavar, help=text, shell_complete=complete)(function)
    return function


@click.command(short_help="Check whether a pod fits now, where it would go, and how many more would fit")
@options.file(
    "-f",
    "--filename",
    help="Pods, or workloads such as Deployments and Jobs, in JSON or YAML: a file, a directory, or -",
)
@_flags
@click.option("--count", type=click.IntRange(1, 1000), metavar="N", help="Number of pods (default: 1)")
@options.printed(("json", "yaml"))
@options.namespaced(candidates.namespaces, all_namespaces=False)
@options.connection(candidates.contexts)
def command(filename: str | None, count: int | None, **params: Any) -> int:
    """Check whether a pod fits now, where it would go, and how many more would fit.

    Places the pods one after the other, in memory, on the current cluster, by the webhook's rules, and the
    ResourceQuotas, defaults and bounds of their namespaces. It creates nothing. The exit code is 0 if all fit, 2 if one
    does not, and 1 for any error.

    \b
    Examples:
      # Would this Deployment fit with all its replicas?
      kubectl gpushare fit -f deployment.yaml
    \b
      # Where would half a GPU with 20Gi go, and how many more of them fit?
      kubectl gpushare fit --request 0.5 --memory 20Gi
    \b
      # Eight whole GPUs on one node
      kubectl gpushare fit --request 1 --gpus 8
    \b
      # On a saved cluster, in a pipeline
      kubectl get gpunodes,nodes,pods -A -o yaml > cluster.yaml
      kubectl gpushare fit --request 0.5 --from cluster.yaml -o json
    """
    from kubectl_gpushare.source import pod_files
    from kubectl_gpushare.views import fit as view

    asked = {key: params.pop(name) for name, (key, _, _) in ASKED.items()}
    annotations = {key: value for key, value in asked.items() if value is not None}
    chosen = options.collect(params)
    if bool(filename) == bool(annotations):
        raise click.UsageError("specify what to fit: either -f FILE, or --request, --memory and the like")
    if filename == "-" and "-" in chosen.files:
        raise click.UsageError("-f and --from cannot both be standard input")
    if not filename and not any(key in annotations for key in contract.SHARE_KEYS):
        raise click.UsageError("specify the size of the share: --request, --memory or --gpus")
    origin = chosen_source.from_options(chosen)
    namespace = chosen.namespace or origin.default_namespace
    workloads = pod_files.read(filename, namespace=namespace) if filename else [described(namespace, annotations)]
    snapshot = chosen_source.everything(origin, [workload.pod for workload in workloads])
    notes = list(snapshot.notes)
    found, wrong = placed(origin, snapshot.world(), workloads, notes, count=count)
    printing.show_page("Fit", lambda: view.page(found, notes), lambda: view.document(found, notes), chosen)
    if wrong:
        raise plugin_errors.PluginError("; ".join(wrong))
    return 0 if found.all_fit else DOES_NOT_FIT


def described(namespace: str, annotations: dict[str, str]) -> Manifest:
    """Return a pod with one container that asks for this."""
    from kubectl_gpushare.source import pod_files

    metadata = {"name": "asked", "namespace": namespace, "annotations": annotations}
    return pod_files.Manifest("", {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}})


def placed(
    origin: chosen_source.Source,
    world: World,
    workloads: Sequence[Manifest],
    notes: list[str],
    *,
    count: int | None = None,
) -> tuple[CapacityAnswer, list[str]]:
    """Place pods by the defaults, bounds and quotas of their namespaces; return also why the webhook denies others.

    Raises `PluginError` if it denies all of them.
    """
    from gpushare.whatif.requesting_pod import RequestingPod
    from kubectl_gpushare.planning import capacity

    wanted, wrong = [], []
    spaces = {pod.namespaced_name(workload.pod)[0] for workload in workloads}
    ranges = {name: chosen_source.share_range(origin, name, notes) for name in sorted(spaces)}
    for workload in workloads:
        allowed = ranges[pod.namespaced_name(workload.pod)[0]]
        try:
            asking = RequestingPod.from_manifest(allowed.with_defaults(workload.pod))
        except errors.RequestError as error:
            refused: str | None = str(error)
        else:
            refused = allowed.excess(asking.request)
            wanted += [] if refused else [capacity.PodBatch(workload.name, asking, count or workload.count)]
        if refused:
            wrong.append(f"{workload.name}: {refused}" if workload.name else refused)
    if not wanted:
        raise plugin_errors.PluginError("; ".join(wrong))
    world.ranges = ranges
    allowances = chosen_source.allowances(origin, (batch.asked.namespace for batch in wanted), notes)
    found = capacity.answer(world, wanted, allowances)
    notes += world.unknown_claims(batch.asked.manifest for batch in wanted)
    return found, wrong
