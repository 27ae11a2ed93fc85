"""`resize`: asks for other amounts of the GPUs that a pod is on, and watches until it has them."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpushare import contract, errors, pod
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import page_layout, printing
from kubectl_gpushare.source import chosen_source, live_cluster

NO_ROOM = 2  # exit code


@click.command(short_help="Give a running pod more or less compute and memory of the GPUs it is on")
@click.argument("name", metavar="POD", shell_complete=candidates.pods)
@click.option("container", "-c", "--container", metavar="NAME", help="The container, in a pod with several shares")
@click.option("--request", metavar="0.5", help="Guaranteed compute as a fraction of one GPU")
@click.option("--limit", metavar="1", help="Maximum compute while the GPU has idle time")
@click.option("--memory", metavar="8Gi", help="Device memory, such as 8Gi or 25%")
@click.option("--wait/--no-wait", "waits", default=True, help="Wait until it is done (default), or only request it")
@click.option("--keep", is_flag=True, help="Keep the request if it cannot be done now")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(1, 3600),
    default=60.0,
    metavar="SECONDS",
    help="How long to wait (default: 60)",
)
@click.option("--dry-run", is_flag=True, help="Print the result, and change nothing")
@options.printed(("json", "yaml"))
@options.namespaced(candidates.namespaces, all_namespaces=False)
@options.connection(candidates.contexts)
def command(
    name: str,
    container: str | None,
    request: str | None,
    limit: str | None,
    memory: str | None,
    waits: bool,
    keep: bool,
    timeout_seconds: float,
    dry_run: bool,
    **params: Any,
) -> int:
    """Give a running pod more or less compute and memory of the GPUs it is on.

    Changes annotations of the pod, which needs permission to patch pods. A share grows if its GPUs have room. Its
    memory shrinks only if the processes use no more than the new size.

    Without room nothing changes. If the processes use too much memory, or time runs out, the annotations are restored.
    With --keep they stay, and the resize happens as soon as it is possible. The exit code is 0 if the resize is done or
    requested, 2 if there is no room for it, and 1 for any error.

    \b
    Examples:
      # More memory for a trainer
      kubectl gpushare resize trainer -n ml --memory 50Gi
    \b
      # Less of everything, for one container
      kubectl gpushare resize notebook -n ml -c main --request 0.1 --memory 4Gi
    \b
      # Would it fit?
      kubectl gpushare resize trainer -n ml --request 0.8 --dry-run
    \b
      # Request it although there is no room, and do not wait
      kubectl gpushare resize trainer -n ml --request 0.8 --keep --no-wait
    """
    from gpushare import resizing as domain
    from kubectl_gpushare import resize_watch as following
    from kubectl_gpushare.planning import resize_plan
    from kubectl_gpushare.views import resize
    from kubectl_gpushare.views.describe import pod_page as described

    amounts = {contract.REQUEST: request, contract.LIMIT: limit, contract.MEMORY: memory}
    asked = {key: value for key, value in amounts.items() if value is not None}
    chosen = options.collect(params)
    if not asked:
        raise click.UsageError("say what it is to have: --request, --limit or --memory")
    origin = chosen_source.of(chosen)
    manifest = chosen_source.pod_named(origin, chosen, name)
    name = pod.namespaced_name(manifest)[1]
    described_pod = described.find(manifest, origin.gpu_nodes(name=described.node_name(manifest)))
    if described_pod.owner is None or described_pod.entry is None:
        raise plugin_errors.PluginError(
            f'pod "{name}" {described.placement(described_pod)}: only a share that is held is resized'
        )
    try:
        plan = resize_plan.plan(manifest, described_pod.owner, described_pod.entry, asked, container or "")
    except errors.GpushareError as error:
        raise plugin_errors.PluginError(str(error)) from error
    if chosen.output or dry_run or not isinstance(origin, live_cluster.LiveCluster):
        page_layout.show("Resize", lambda: resize.page(manifest, plan), lambda: resize.document(manifest, plan), chosen)
    also = resize_plan.beside(plan)
    if also:
        printing.warn([also])
    lacks = plan.cause is domain.ResizeCause.ROOM
    if not isinstance(origin, live_cluster.LiveCluster) or (lacks and not keep):
        if lacks and not dry_run and not chosen.output:
            printing.warn([f"nothing was changed: {plan.waits_for}; --keep requests it anyway"])
        return NO_ROOM if lacks else 0
    following.ask(manifest, plan.changes, origin, dry_run=dry_run)
    if dry_run:
        return NO_ROOM if lacks else 0
    done = f"pod/{name} asks for {domain.amounts(plan.desired)}"
    if waits:
        held = following.watch(
            manifest,
            plan,
            origin,
            lambda said: printing.write_words([said], sys.stderr),
            timeout_seconds=timeout_seconds,
            keep=keep,
        )
        done = f"pod/{name} holds {held}"
    printing.write_words([done], sys.stderr if chosen.output else sys.stdout)
    return 0
