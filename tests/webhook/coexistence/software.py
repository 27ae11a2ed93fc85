"""Software that changes pods, and the result for a pod with a share. docs/coexistence.md is made from this table.

To add software: add a row here, and run `make docs`. A test tries each row. The software itself does not run: a webhook
makes the same change to a pod, before or after gpushare's webhook.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from gpushare import contract, pod
from tests.webhook import admission_chain
from tests.webhook.admission_chain import Pod, Webhook


@dataclasses.dataclass(frozen=True, slots=True)
class Software:
    """A product. The pod that it changes requests half a GPU, and has one container, `main`, unless `shape` adds some.

    does: to the pod. change: the same, as a webhook. before: whether its configuration sorts before gpushare's.
    outcome: of gpushare's last call. sharer: the container that gets the share. comes: what a user sees. advice: what
    to do, if anything.
    """

    name: str
    does: str
    change: Webhook
    comes: str
    before: bool = False
    outcome: str = "kept"
    sharer: str = "main"
    advice: str = ""


def several(*changes: Webhook) -> Webhook:
    """Combine changes."""

    def change(pod: Pod) -> None:
        for one in changes:
            one(pod)

    return change


def native_sidecar(pod: Pod) -> None:
    init = pod["spec"].setdefault("initContainers", [])
    if not any(container["name"] == "istio-proxy" for container in init):
        init.insert(0, {"name": "istio-proxy", "image": "x", "restartPolicy": "Always"})


def tolerate(pod: Pod) -> None:
    pod["spec"]["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]


def variable(pod: Pod) -> None:
    for container in pod["spec"]["containers"]:
        env = container.setdefault("env", [])
        if not any(entry["name"] == "DD_AGENT_HOST" for entry in env):
            env.insert(0, {"name": "DD_AGENT_HOST", "value": "10.0.0.1"})


def restored(pod: Pod) -> None:
    """Return a pod as in a backup, from a node that no longer exists."""
    results = {contract.ALLOCATION: "old", contract.NODE: "old-node", contract.GPU_UUIDS: "GPU-old"}
    if "velero.io/restore-name" in pod["metadata"].get("labels", {}):
        return
    pod["metadata"]["annotations"].update(results)
    pod["metadata"]["labels"] = {"velero.io/restore-name": "r1", contract.SHARE_LABEL: contract.SHARE_LABEL_VALUE}
    pod["spec"]["nodeSelector"] = {contract.HOSTNAME_LABEL: "old-node"}


def claim(pod: Pod) -> None:
    """Add a NIC by dynamic resource allocation."""
    pod["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimTemplateName": "rdma"}]
    pod["spec"]["containers"][0].setdefault("resources", {})["claims"] = [{"name": "nic"}]


def argo(pod: Pod) -> None:
    admission_chain.sidecar(0, "wait")(pod)
    admission_chain.annotate(_DEFAULT, "main")(pod)


_DEFAULT: Final = pod.DEFAULT_CONTAINER
_FIRST: Final = "the share stays with the pod's own container"
_JUDGED: Final = "the pod is evaluated again, and moves to a node that fits"
_SIDECAR_HAS_IT: Final = "the sidecar gets the share, and a warning names it"
_NAME_IT: Final = "write `gpushare.io/container`"

SOFTWARE: Final = (
    Software(
        "Kueue",
        "adds its scheduling gate to a pod of a queue",
        admission_chain.gate("kueue.x-k8s.io/admission"),
        "gpushare releases the share and gates the pod; it gets one when Kueue removes its gate",
        outcome="gated",
    ),
    Software("Kuma", "injects its sidecar as the first container", admission_chain.sidecar(0, "kuma-sidecar"), _FIRST),
    Software(
        "Linkerd", "injects its proxy as the first container", admission_chain.sidecar(0, "linkerd-proxy"), _FIRST
    ),
    Software(
        "Istio",
        "injects its proxy first and names the default container",
        several(admission_chain.sidecar(0, "istio-proxy"), admission_chain.annotate(_DEFAULT, "main")),
        _FIRST,
    ),
    Software("Istio, native sidecars", "adds an init container that keeps running", native_sidecar, _FIRST),
    Software(
        "GKE's Cloud Storage FUSE",
        "injects its sidecar first, before gpushare is called",
        admission_chain.sidecar(0, "gke-gcsfuse-sidecar"),
        _SIDECAR_HAS_IT,
        before=True,
        outcome="placed",
        sharer="gke-gcsfuse-sidecar",
        advice=_NAME_IT,
    ),
    Software(
        "Consul",
        "injects its proxy first, before gpushare is called",
        admission_chain.sidecar(0, "consul-dataplane"),
        _SIDECAR_HAS_IT,
        before=True,
        outcome="placed",
        sharer="consul-dataplane",
        advice=_NAME_IT,
    ),
    Software("Kyverno", "adds a node selector", admission_chain.selector("pool", "serve"), _JUDGED, outcome="placed"),
    Software(
        "Gatekeeper",
        "adds a node selector, before gpushare is called",
        admission_chain.selector("pool", "serve"),
        "the pod is placed where it fits",
        before=True,
        outcome="placed",
    ),
    Software(
        "Spark operator",
        "adds tolerations and a node selector",
        several(tolerate, admission_chain.selector("pool", "serve")),
        _JUDGED,
        outcome="placed",
    ),
    Software(
        "Vertical Pod Autoscaler",
        "raises what a container asks for",
        admission_chain.requests("cpu", "12"),
        "the pod is evaluated again, and waits if no node has so much",
        outcome="gated",
    ),
    Software(
        "Datadog's admission controller",
        "adds variables in front",
        variable,
        "nothing changes",
        before=True,
        outcome="placed",
    ),
    Software(
        "Velero",
        "restores a pod that was placed",
        restored,
        "results and hostname pin are taken out, with a warning; the pod is placed again",
        before=True,
        outcome="placed",
    ),
    Software(
        "Argo Workflows",
        "puts `wait` first and names the default container",
        argo,
        "`main` has the share",
        before=True,
        outcome="placed",
    ),
    Software(
        "Tekton",
        "makes a container of each step",
        admission_chain.sidecar(0, "step-fetch"),
        "the first step gets the share, and a warning names it",
        before=True,
        outcome="placed",
        sharer="step-fetch",
        advice=_NAME_IT,
    ),
    Software(
        "KServe on Knative",
        "adds `queue-proxy` at the end",
        admission_chain.sidecar(-1, "queue-proxy"),
        "`kserve-container`, the first one, has the share",
    ),
    Software(
        "DRA drivers of NICs",
        "a claim in the container of the share",
        claim,
        "the pod has both",
        before=True,
        outcome="placed",
    ),
)


def nodes() -> list[dict[str, Any]]:
    """Return two nodes, of which one is in the pool `serve`."""
    return [admission_chain.node("node-a", {"pool": "train"}), admission_chain.node("node-b", {"pool": "serve"})]
