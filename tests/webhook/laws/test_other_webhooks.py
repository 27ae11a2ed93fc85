"""Law: with any other webhooks in any order, a pod is placed where it can run, or gated with a reason.

The expected result is computed here from nodes and stored pod, without the filters that the webhook uses.
"""

from __future__ import annotations

import fractions
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract, pod, quantity
from tests import builders
from tests.webhook import admission_chain
from tests.webhook.admission_chain import Admitted, Chain, Pod, Webhook
from webhook import admission
from webhook.pods import pod_manifest
from webhook.store import reservation

pytestmark = pytest.mark.slow

ZONE = "topology.kubernetes.io/zone"
NODES = (
    admission_chain.node("node-a", {"pool": "train", ZONE: "a"}, cpu="4"),
    admission_chain.node("node-b", {"pool": "serve", ZONE: "b"}, cpu="16"),
    admission_chain.node("node-c", {"pool": "serve", ZONE: "b"}, cpu="32", tainted=True),
)
GATE = "kueue.x-k8s.io/admission"


def tolerate(pod: Pod) -> None:
    tolerations = pod["spec"].setdefault("tolerations", [])
    if not any(toleration.get("key") == "dedicated" for toleration in tolerations):
        tolerations.append({"key": "dedicated", "operator": "Exists"})


def zone(value: str) -> Webhook:
    """Require a zone by node affinity, unless one is required already."""

    def require(pod: Pod) -> None:
        term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [value]}]}
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        pod["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", affinity)

    return require


def native_sidecar(pod: Pod) -> None:
    init = pod["spec"].setdefault("initContainers", [])
    if not any(container["name"] == "mesh" for container in init):
        resources = {"requests": {"cpu": "3"}}
        init.insert(0, {"name": "mesh", "image": "x", "restartPolicy": "Always", "resources": resources})


def variables(pod: Pod) -> None:
    for container in pod["spec"]["containers"]:
        if not any(entry["name"] == "TEAM" for entry in container.get("env") or []):
            container["env"] = [{"name": "TEAM", "value": "ml"}, *(container.get("env") or [])]


def once(change: Webhook) -> Webhook:
    """Apply a change only to a pod that is new."""

    def first(pod: Pod) -> None:
        if pod["metadata"].setdefault("labels", {}).setdefault(change.__name__, "done") == "done":
            pod["metadata"]["labels"][change.__name__] = "true"
            change(pod)

    return first


def without_variables(pod: Pod) -> None:
    for container in pod["spec"]["containers"]:
        container["env"] = []


def without_pin(pod: Pod) -> None:
    pod["spec"].setdefault("nodeSelector", {}).pop(contract.HOSTNAME_LABEL, None)


def all_gpus(pod: Pod) -> None:
    for container in pod["spec"]["containers"]:
        container.setdefault("env", []).append({"name": contract.ENV_VISIBLE_DEVICES, "value": "all"})


def label(pod: Pod) -> None:
    pod["metadata"].setdefault("labels", {})["team"] = "ml"


def own_hostname(pod: Pod) -> None:
    pod["spec"]["nodeSelector"] = {**(pod["spec"].get("nodeSelector") or {}), contract.HOSTNAME_LABEL: "node-b"}


OTHERS: dict[str, Webhook] = {
    "gate": admission_chain.gate(GATE),
    "train": admission_chain.selector("pool", "train"),
    "serve": admission_chain.selector("pool", "serve"),
    "nowhere": admission_chain.selector("pool", "elsewhere"),
    "host": own_hostname,
    "tolerate": tolerate,
    "zone a": zone("a"),
    "zone b": zone("b"),
    "6 cpus": admission_chain.requests("cpu", "6"),
    "64 cpus": admission_chain.requests("cpu", "64"),
    "60Gi": admission_chain.requests("memory", "60Gi"),
    "sidecar first": admission_chain.sidecar(0, requests={"cpu": "2"}),
    "sidecar last": admission_chain.sidecar(-1, "logger", requests={"cpu": "2"}),
    "sidecar before all": native_sidecar,
    "variables": variables,
    "no variables": once(without_variables),
    "no pin": once(without_pin),
    "all gpus": once(all_gpus),
    "label": label,
    "annotation": admission_chain.annotate("example.com/team", "ml"),
    "default container": admission_chain.annotate("kubectl.kubernetes.io/default-container", "proxy"),
    "memory": admission_chain.annotate(contract.MEMORY, "60Gi"),
    "no gpu": admission_chain.annotate(contract.NOT_UUID, "GPU-node-a-0,GPU-node-a-1"),
}
# Two webhooks that insist on different values never agree, with or without gpushare.
OPPOSED = {
    "train": "pool",
    "serve": "pool",
    "nowhere": "pool",
    "6 cpus": "cpu",
    "64 cpus": "cpu",
    "host": "host",
    "no pin": "host",
}
webhooks = st.lists(st.sampled_from(sorted(OTHERS)), max_size=5, unique_by=lambda name: OPPOSED.get(name, name))


def fits(pod: Pod, node: dict[str, Any]) -> bool:
    """Whether kube-scheduler would bind it there."""
    spec, labels = pod["spec"], node["metadata"]["labels"]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    tolerated = bool(spec.get("tolerations")) or not node["spec"]["taints"]
    selected = all(labels.get(key) == value for key, value in (spec.get("nodeSelector") or {}).items())
    wanted = terms is None or any(labels[ZONE] in term["matchExpressions"][0]["values"] for term in terms)
    there = node["status"]["allocatable"]
    return (
        tolerated
        and selected
        and wanted
        and all(asked(pod, name) <= quantity.parse(there[name]) for name in ("cpu", "memory"))
    )


def asked(pod: Pod, name: str) -> fractions.Fraction:
    containers = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", []))
    amounts = (((container.get("resources") or {}).get("requests") or {}).get(name, "0") for container in containers)
    return sum(map(quantity.parse, amounts), fractions.Fraction())


def check(chain: Chain, stored: Admitted, *, sharer: str, host: str | None, before: dict[str, list[Any]]) -> str:
    """Check the law; return the outcome for the pod."""
    held = {
        name: [entry for entry in entries if entry not in before.get(name, ())]
        for name, entries in chain.allocations().items()
    }
    ours = [(name, entry) for name, entries in held.items() for entry in entries]
    assert stored.sharers == [sharer]
    if contract.ALLOCATION not in stored.annotations:
        assert contract.SCHEDULING_GATE in stored.gates
        assert stored.annotations[contract.REASON]
        assert ours == []
        assert (stored.pod["spec"].get("nodeSelector") or {}).get(contract.HOSTNAME_LABEL) == host
        return "gated by others" if GATE in stored.gates else "gated"
    ((name, entry),) = ours
    assert stored.gates == []
    assert (entry.id, name) == (stored.annotations[contract.ALLOCATION], stored.annotations[contract.NODE])
    assert [share.containers for share in entry.shares] == [(sharer,)]
    assert stored.pod["spec"]["nodeSelector"][contract.HOSTNAME_LABEL] == name
    (node,) = [node for node in NODES if node["metadata"]["name"] == name]
    assert fits(stored.pod, node)
    visible = {
        container["name"]: entry["value"]
        for container in stored.pod["spec"]["containers"]
        for entry in container["env"]
        if entry["name"] == contract.ENV_VISIBLE_DEVICES
    }
    gpus = ",".join(entry.shares[0].gpu_uuids)
    names = [container["name"] for container in stored.pod["spec"]["containers"]]
    assert visible == {name: gpus if name == sharer else "void" for name in names}
    return "placed again" if stored.answers[-1].outcome == "placed" and len(stored.answers) > 1 else "placed"


@given(webhooks, st.integers(0, 5), st.sampled_from(["0.5", "1"]), st.booleans())
def test_a_pod_is_placed_where_it_can_run_or_gated(names: list[str], first: int, request: str, full: bool) -> None:
    hypothesis.event(outcome(names[:first], names[first:], request, full=full))


async def nothing(*_: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("owner", "name", "instead", "behind"),
    [
        (admission, "find_reservation", nothing, "label"),
        (admission.Admission, "_still_fits", lambda *_: True, "gate"),
        (admission.Admission, "_still_fits", lambda *_: True, "nowhere"),
        (reservation.Reservation, "release", nothing, "gate"),
        (pod, "default_container", lambda manifest: manifest["spec"]["containers"][0]["name"], "sidecar first"),
        (pod_manifest.PodSpecView, "pinned_host", "", "nowhere"),
    ],
)
def test_a_safeguard_taken_out_breaks_the_law(
    owner: Any, name: str, instead: Any, behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome([], [behind], "0.5")
    monkeypatch.setattr(owner, name, instead)
    with pytest.raises((AssertionError, ValueError)):
        outcome([], [behind], "0.5")


def outcome(before: list[str], behind: list[str], request: str, *, full: bool = False) -> str:
    """Return the lawful outcome for a pod; `full`: the GPUs of node-a are allocated."""
    chain = Chain(NODES)
    if full:
        for number in range(2):
            taken = builders.pod(f"taken-{number}", request="1")
            taken["spec"]["nodeSelector"] = {"pool": "train"}
            chain.create(taken)
        chain.confirm()
    there = chain.allocations()
    stored = chain.create(
        builders.pod(request=request),
        before=[OTHERS[name] for name in before],
        behind=[OTHERS[name] for name in behind],
    )
    sharer = "proxy" if "sidecar first" in before else "main"
    host = "node-b" if "host" in (*before, *behind) else None
    became = check(chain, stored, sharer=sharer, host=host, before=there)
    if became == "gated":  # and not for want of a second look
        not_there = {"node-a"} if full or contract.NOT_UUID in stored.annotations else set()
        assert not any(fits(stored.pod, node) for node in NODES if node["metadata"]["name"] not in not_there)
    return became
