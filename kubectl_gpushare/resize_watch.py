"""Asks for other amounts by a pod's annotations, and watches until the ledger has them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from gpushare import contract, errors, pod, resizing
from gpushare import request as requests
from gpushare.resizing import ResizeCause
from kubectl_gpushare import plugin_errors
from kubectl_gpushare.planning.resize_plan import ResizePlan
from kubectl_gpushare.source import live_cluster
from kubectl_gpushare.views.describe import pod_page as described

LOOK_SECONDS = 0.5
_STAYS = "it stays asked for, and is done when that can be"


def ask(
    manifest: pod.PodJson, changes: Mapping[str, str | None], origin: live_cluster.LiveCluster, *, dry_run: bool
) -> None:
    """Set these annotations on the pod with this uid; None removes one."""
    namespace, name = pod.namespaced_name(manifest)
    body = {"metadata": {"uid": pod.uid(manifest), "annotations": dict(changes)}}
    origin.kubectl.patch("pod", name, json.dumps(body), dry_run, namespace=namespace)


def watch(
    manifest: pod.PodJson,
    plan: ResizePlan,
    origin: live_cluster.LiveCluster,
    say: Callable[[str], None],
    *,
    timeout_seconds: float,
    keep: bool,
) -> str:
    """Wait until the resize is done; return what the pod holds then, in words.

    Raises PluginError if more memory is in use than is asked for, or after `timeout_seconds`; it has then put back the
    old annotations, unless `keep`. When interrupted, or when the cluster is gone, it says that they stay.
    """
    try:
        return _watch(manifest, plan, origin, say, timeout_seconds=timeout_seconds, keep=keep)
    except (KeyboardInterrupt, plugin_errors.KubectlError) as error:
        if not isinstance(error, plugin_errors.KubectlNotFound):  # the pod itself is gone
            say(f"not waited for any more: {_STAYS}")
        raise


def _watch(
    manifest: pod.PodJson,
    plan: ResizePlan,
    origin: live_cluster.LiveCluster,
    say: Callable[[str], None],
    *,
    timeout_seconds: float,
    keep: bool,
) -> str:
    until = time.monotonic() + timeout_seconds
    said = ""
    while True:
        waits_for, cause, held = _look(manifest, origin)
        if not waits_for:
            return held
        is_over = time.monotonic() >= until
        if is_over or (cause is ResizeCause.USE and not keep):
            break
        if waits_for != said and cause is not ResizeCause.NOTHING:
            say(f"waits: {waits_for}")
            said = waits_for
        time.sleep(LOOK_SECONDS)
    late = f"not done after {timeout_seconds:.0f} s: " if cause is not ResizeCause.USE else ""
    if keep:
        raise plugin_errors.PluginError(f"{late}{waits_for}; {_STAYS}")
    ask(manifest, plan.before, origin, dry_run=False)
    raise plugin_errors.PluginError(f"{late}{waits_for}; the annotations are restored, and its share is unchanged")


def _look(manifest: pod.PodJson, origin: live_cluster.LiveCluster) -> tuple[str, ResizeCause, str]:
    """Return the pod's pending amounts, the cause, and its current amounts, in words, by its annotations now."""
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
