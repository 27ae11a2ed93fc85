"""`resize`: requests other amounts of a pod's GPUs, and waits until the pod has them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import click

from gpushare import contract, errors, pod, resizing
from gpushare import request as requests
from gpushare.resizing import ResizeCause
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import printing
from kubectl_gpushare.source import chosen_source, live_cluster
from kubectl_gpushare.views import pod_page as described
from kubectl_gpushare.views.resize import ResizePlan

NO_ROOM = 2  # exit code
POLL_SECONDS = 0.5
_STAYS = "the request stays, and is carried out as soon as possible"


@click.command(short_help="Give a running pod more or less compute and memory of the GPUs it is on")
@click.argument("name", metavar="POD", shell_complete=candidates.pods)
@click.option("-c", "--container", metavar="NAME", help="The container, in a pod with several shares")
@click.option("--request", metavar="0.5", help="Guaranteed compute as a fraction of one GPU")
@click.option("--limit", metavar="1", help="Maximum compute while the GPU has idle time")
@click.option("--memory", metavar="8Gi", help="Device memory, such as 8Gi or 25%")
@click.option("--memory-limit", metavar="20Gi", help="Maximum memory while the GPU has some that no share requests")
@click.option("--wait/--no-wait", "waits", default=True, help="Wait until it is done (default), or only request it")
@click.option("--keep", is_flag=True, help="Keep the request if it cannot be done now")
@options.timeout(60.0, "How long to wait")
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
    memory_limit: str | None,
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
    from kubectl_gpushare.views import resize

    asked = amounts(request, limit, memory, memory_limit)
    chosen = options.collect(params)
    origin = chosen_source.from_options(chosen)
    manifest = chosen_source.pod_named(origin, chosen, name)
    name = pod.namespaced_name(manifest)[1]
    notes: list[str] = []
    plan = planned(origin, manifest, asked, container or "", notes)
    printing.warn(notes)
    if chosen.output or dry_run or not isinstance(origin, live_cluster.LiveCluster):
        printing.show_page(
            "Resize", lambda: resize.page(manifest, plan), lambda: resize.document(manifest, plan), chosen
        )
    also = resize.beside(plan)
    if also:
        printing.warn([also])
    lacks = plan.cause is resizing.ResizeCause.ROOM
    if not isinstance(origin, live_cluster.LiveCluster) or (lacks and not keep):
        if lacks and not dry_run and not chosen.output:
            printing.warn([f"nothing was changed: {plan.waits_for}; --keep requests it anyway"])
        return NO_ROOM if lacks else 0
    annotate(manifest, plan.changes, origin, dry_run=dry_run)
    if dry_run:
        return NO_ROOM if lacks else 0
    done = f"pod/{name} asks for {resizing.amounts(plan.desired)}"
    if waits:
        done = f"pod/{name} holds {_wait(manifest, plan, origin, timeout_seconds=timeout_seconds, keep=keep)}"
    printing.write_words([done], sys.stderr if chosen.output else sys.stdout)
    return 0


def amounts(request: str | None, limit: str | None, memory: str | None, memory_limit: str | None) -> dict[str, str]:
    """Return the given amounts by their annotations. Raises `UsageError` if there are none."""
    given = {
        contract.REQUEST: request,
        contract.LIMIT: limit,
        contract.MEMORY: memory,
        contract.MEMORY_LIMIT: memory_limit,
    }
    asked = {key: value for key, value in given.items() if value is not None}
    if not asked:
        raise click.UsageError("specify the new size: --request, --limit, --memory or --memory-limit")
    return asked


def planned(
    origin: chosen_source.Source, manifest: pod.PodJson, asked: Mapping[str, str], container: str, notes: list[str]
) -> ResizePlan:
    """Return the plan for these amounts; `notes` gets what could not be read. Raises `PluginError`."""
    from kubectl_gpushare.views import resize

    described_pod = described.find(manifest, origin.gpu_nodes(name=described.node_name(manifest)))
    namespace, name = pod.namespaced_name(manifest)
    if described_pod.owner is None or described_pod.entry is None:
        raise plugin_errors.PluginError(
            f'pod "{name}" {described.placement(described_pod)}: only a share that is held is resized'
        )
    allowed = chosen_source.share_range(origin, namespace, notes)
    try:
        return resize.plan(manifest, described_pod.owner, described_pod.entry, asked, container, allowed=allowed)
    except errors.GpushareError as error:
        raise plugin_errors.PluginError(str(error)) from error


def annotate(
    manifest: pod.PodJson, changes: Mapping[str, str | None], origin: live_cluster.LiveCluster, *, dry_run: bool
) -> None:
    namespace, name = pod.namespaced_name(manifest)
    body = {"metadata": {"uid": pod.uid(manifest), "annotations": dict(changes)}}
    origin.kubectl.patch("pod", name, json.dumps(body), dry_run, namespace=namespace)


def _wait(
    manifest: pod.PodJson, plan: ResizePlan, origin: live_cluster.LiveCluster, *, timeout_seconds: float, keep: bool
) -> str:
    """Wait until the resize is done; return the pod's new amounts, in words.

    Raises PluginError if more memory is in use than the pod asks for, or after `timeout_seconds`; without `keep` it has
    restored the old annotations by then. When interrupted, or when the cluster is unreachable, it says that they stay.
    """
    try:
        return _poll(manifest, plan, origin, timeout_seconds=timeout_seconds, keep=keep)
    except (KeyboardInterrupt, plugin_errors.KubectlError) as error:
        if not isinstance(error, plugin_errors.KubectlNotFound):  # the pod itself is gone
            printing.write_words([f"no longer waiting: {_STAYS}"], sys.stderr)
        raise


def _poll(
    manifest: pod.PodJson, plan: ResizePlan, origin: live_cluster.LiveCluster, *, timeout_seconds: float, keep: bool
) -> str:
    until = time.monotonic() + timeout_seconds
    said = ""
    while True:
        waits_for, cause, held = _pending(manifest, origin)
        if not waits_for:
            return held
        is_over = time.monotonic() >= until
        if is_over or (cause is ResizeCause.USE and not keep):
            break
        if waits_for != said and cause is not ResizeCause.NOTHING:
            printing.write_words([f"waits: {waits_for}"], sys.stderr)
            said = waits_for
        time.sleep(POLL_SECONDS)
    late = f"not done after {timeout_seconds:.0f} s: " if cause is not ResizeCause.USE else ""
    if keep:
        raise plugin_errors.PluginError(f"{late}{waits_for}; {_STAYS}")
    annotate(manifest, plan.before, origin, dry_run=False)
    raise plugin_errors.PluginError(f"{late}{waits_for}; the annotations are restored, and its share is unchanged")


def _pending(manifest: pod.PodJson, origin: live_cluster.LiveCluster) -> tuple[str, ResizeCause, str]:
    namespace, name = pod.namespaced_name(manifest)
    now = origin.pod(namespace, name)
    if pod.uid(now) != pod.uid(manifest):
        raise plugin_errors.KubectlNotFound(f"pod {namespace}/{name} is gone: the one of that name now is another")
    described_pod = described.find(now, origin.gpu_nodes(name=described.node_name(now)))
    if described_pod.owner is None or described_pod.entry is None:
        raise plugin_errors.KubectlNotFound(f"pod {namespace}/{name} holds no share any more")
    held = resizing.amounts(described_pod.entry.shares)
    try:
        desired = resizing.asked(requests.parse(now), described_pod.entry, described_pod.owner)
    except errors.GpushareError as error:
        raise plugin_errors.PluginError(str(error)) from error
    if desired == described_pod.entry.shares:
        return "", ResizeCause.NOTHING, held
    step = resizing.step(described_pod.owner, described_pod.entry.id, desired)
    reason = pod.annotations_of(now).get(contract.REASON, "").removeprefix(resizing.WAITING)
    return step.waits_for or reason or "the placer has not written it yet", step.cause, held
