"""`describe pod`: a pod's request, its allocation and the other shares there, or why it waits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from gpushare import contract, errors, isolation, mig_shares, pod, quantity, request
from gpushare import resizing as domain_resizing
from gpushare.allocation import Allocation, GivenShare, Isolation
from gpushare.gpunode import GpuNode
from gpushare.placement import explanation
from kubectl_gpushare.output.values import Block, Document, Page, Section, field, letter, section
from kubectl_gpushare.source import inputs
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import as_kubectl, gpu_summary, resize, tenants
from kubectl_gpushare.views import gpu_page as described_gpus

_NO_TROUBLE = {"Cordoned", "Changing", "Excluding", "Held"}  # relative to pods that are on the GPU already
_NOT_STARTED = ("CreateContainerConfigError", "CreateContainerError")
_NOT_OURS = (
    "It asks for no share of a GPU: it has none of the annotations "
    f"{', '.join(contract.SHARE_KEYS[:-1])} and {contract.SHARE_KEYS[-1]}."
)


@dataclasses.dataclass(frozen=True, slots=True)
class DescribedPod:
    """A pod with its allocation, if it has one."""

    manifest: pod.PodJson
    owner: GpuNode | None  # the node that its annotation names
    entry: Allocation | None  # its allocation there
    is_known: bool = True  # whether its GPUNode could be read

    @property
    def ours(self) -> bool:
        return pod.asks_for_share(self.manifest)

    @property
    def needs_default_isolation(self) -> bool:
        """Whether the pod has its isolation because of the cluster's default."""
        is_named = contract.ISOLATION in pod.annotations_of(self.manifest)
        return self.entry is not None and self.entry.labels.isolation is not Isolation.ARBITER and not is_named

    @property
    def in_partition(self) -> str:
        """A clause about its SM partition, after a comma, or ""."""
        if self.owner is None or self.entry is None:
            return ""
        gpus = self.owner.gpu_by_uuid()
        return isolation.in_partition(
            self.entry.labels.isolation, (gpus[uuid] for uuid in self.entry.gpu_uuids if uuid in gpus)
        )

    @property
    def gated(self) -> bool:
        return contract.SCHEDULING_GATE in pod.gates(self.manifest)

    @property
    def placement(self) -> str:
        """`Placed`, `Waiting`, `NotPlaced`, `Ended`, `NotOurs`, or `Unknown` if its GPUNode may not be read."""
        if not self.ours:
            return "NotOurs"
        if self.entry is not None:
            return "Placed"
        if self.gated:
            return "Waiting"
        if pod.is_terminal(self.manifest):
            return "Ended"
        return "NotPlaced" if self.is_known else "Unknown"


def node_name(manifest: pod.PodJson) -> str:
    return pod.annotations_of(manifest).get(contract.NODE, "")


def find(manifest: pod.PodJson, nodes: Iterable[GpuNode], *, is_known: bool = True) -> DescribedPod:
    """Find the pod's allocation in the ledger of its node: by uid, or by name where the ledger has no uid."""
    owner = next((node for node in nodes if node.name == node_name(manifest)), None)
    name, identity = pod.namespaced_name(manifest), pod.uid(manifest)
    for entry in owner.allocations if owner else ():
        if entry.is_backfill_reservation:
            continue  # a backfill reservation: the pod is not placed
        if entry.pod.uid == identity if entry.pod.uid else (entry.pod.namespace, entry.pod.name) == name:
            return DescribedPod(manifest, owner, entry)
    return DescribedPod(manifest, owner, None, is_known)


def page(described: DescribedPod, snapshot: Snapshot, missing: str = "", *, now: float) -> Page:
    namespace, name = pod.namespaced_name(described.manifest)
    head = (
        *field("Missing", missing, style="bad"),
        *field("Name", name),
        *field("Namespace", namespace),
        *field("State", as_kubectl.pod_state(described.manifest)),
    )
    if not described.ours:
        return (
            *head,
            *section("Problems", filter(None, [inputs.misspelt(described.manifest)]), "bad"),
            *field("GPU Share", _NOT_OURS),
        )
    started = as_kubectl.pod_started(described.manifest)
    age = as_kubectl.since(started, now=now)
    wanted, wrong = requested(described.manifest)
    annotations = [
        f"{key}: {errors.quoted(str(value))}"
        for key, value in sorted(pod.annotations_of(described.manifest).items())
        if key.startswith(contract.PREFIX) and not request.is_result_key(key)
    ]
    return (
        *head,
        *section("Problems", (*wrong, *_problems(described)), "bad"),
        *field("Since", f"{started} ({age})" if age else ""),
        *field("Placement", placement(described), style="warn" if described.placement != "Placed" else ""),
        *field("Reason", _reason(described) if described.entry is None else ""),
        *field("Asks For", *wanted),
        *field("Isolation", _isolation(described, snapshot)),
        *_resize(described),
        *field("Lent Memory", *_lent(described)),
        *field("Annotations", *annotations),
        *(_shares(described, described.entry, snapshot, now) if described.entry else ()),
        *as_kubectl.events_section(snapshot.events, now=now),
        *section("Not Shown", snapshot.notes, "warn"),
    )


def document(described: DescribedPod, snapshot: Snapshot, missing: str | None = None) -> Document:
    namespace, name = pod.namespaced_name(described.manifest)
    wanted, wrong = requested(described.manifest) if described.ours else ([], [])
    held = _held(described)
    return {
        "namespace": namespace,
        "name": name,
        "uid": pod.uid(described.manifest),
        "state": as_kubectl.pod_state(described.manifest),
        "since": as_kubectl.pod_started(described.manifest),
        "placement": described.placement,
        "reason": _reason(described) if described.ours else _NOT_OURS,
        "asksFor": wanted,
        "node": described.owner.name if described.owner and described.entry else "",
        "allocation": described.entry.id if described.entry else "",
        "isolation": described.entry.labels.isolation.value if described.entry else "",
        "isolationWhy": _isolation_why(described, snapshot),
        "shares": [
            {
                "containers": list(share.containers),
                "gpus": [{"name": gpu.name, "uuid": gpu.gpu.uuid, "model": gpu.gpu.model} for gpu in held
                         if gpu.gpu.uuid in share.gpu_uuids],
                "requestPercent": share.request_percent,
                "limitPercent": share.limit_percent,
                "memoryBytes": share.memory_bytes,
                **({} if share.shrink_to_bytes is None else {"shrinksToBytes": share.shrink_to_bytes}),
                **_lent_document(described, position, share),
                **({} if share.mig is None else {"migDevice": str(share.mig)}),
            }
            for position, share in enumerate(described.entry.shares if described.entry else ())
        ],
        "sharesWith": _neighbours(described, held),
        "problems": [*wrong, *(_problems(described) if described.ours else [])],
        "events": as_kubectl.event_items(snapshot.events),
        "notes": list(snapshot.notes),
        **({} if missing is None else {"missing": missing}),
    }  # fmt: skip


def _lent_document(described: DescribedPod, position: int, share: GivenShare) -> dict[str, int]:
    if share.memory_limit_bytes is None or described.owner is None or described.entry is None:
        return {}
    lent_bytes = described.owner.lent().get((described.entry.id, position), 0)
    return {"memoryLimitBytes": share.memory_limit_bytes, "lentBytes": lent_bytes}


def _lent(described: DescribedPod) -> list[str]:
    """Return a line for each share with a memory limit: the memory it is lent, and the most that it may be lent."""
    lines = []
    for position, share in enumerate(described.entry.shares if described.entry else ()):
        if known := _lent_document(described, position, share):
            lent, most = map(quantity.format_bytes, (known["lentBytes"], known["memoryLimitBytes"]))
            lines.append(f"{lent} beyond {quantity.format_bytes(share.memory_bytes)}, of at most {most} in all")
    return lines


def is_isolation_notable(asked: request.Request, *kinds: Isolation) -> bool:
    """Whether the isolation of a pod with this request is worth a line: it asks for one, or got other than leases."""
    return bool(asked.isolation) or any(kind is not Isolation.ARBITER for kind in kinds)


def _isolation(described: DescribedPod, snapshot: Snapshot) -> str:
    if described.entry is None:
        return ""
    why = _isolation_why(described, snapshot)
    kind = mig_shares.described(described.entry.labels.isolation, described.entry.shares)
    return f"{kind}: {why}" if why else kind


def _isolation_why(described: DescribedPod, snapshot: Snapshot) -> str:
    """Return why the pod has its isolation; empty if it has none, or the cluster's default is needed and not known."""
    try:
        asked = request.parse(described.manifest)
    except errors.RequestError:
        return ""
    if described.entry is None or (snapshot.profile is None and not asked.isolation):
        return ""
    default = isolation.DEFAULT if snapshot.profile is None else snapshot.profile.isolation
    return isolation.why(asked, default, described.entry.labels.isolation) + described.in_partition


def _shares(described: DescribedPod, entry: Allocation, snapshot: Snapshot, now: float) -> Page:
    held = _held(described)
    order = tenants.letters(held)
    if entry.id not in order:
        return ()  # the allocation names no GPU: possible only in a file
    loans = described.owner.lent() if described.owner else {}
    blocks: list[Block] = []
    for gpu in held:
        blocks += [f"{gpu.node}/{described_gpus.gpu_line(gpu)}", *tenants.pictures(gpu, order, loans)]
    table = tenants.table(held, order, tenants.Pods.from_snapshot(snapshot), now=now)
    return (Section(f"GPUs (this pod is {letter(order[entry.id])})", tuple(blocks)), Section("Tenants", (table,)))


def _held(described: DescribedPod) -> list[gpu_summary.GpuSummary]:
    if described.owner is None or described.entry is None:
        return []
    mine = described.entry.gpu_uuids
    return [gpu for gpu in gpu_summary.summarize([described.owner]) if gpu.gpu.uuid in mine]


def _neighbours(described: DescribedPod, held: list[gpu_summary.GpuSummary]) -> list[str]:
    mine = described.entry.id if described.entry else ""
    others = {holder.id: str(holder.pod) for gpu in held for holder in gpu.holders if holder.id != mine}
    return sorted(others.values())


def placement(described: DescribedPod, refusal: str = "") -> str:
    """Return where the pod is, or why it is nowhere. refusal: why it fits nowhere, if it has no reason yet."""
    if described.entry and described.owner:
        names = ", ".join(gpu.name for gpu in _held(described))
        if not names:
            return f"on {described.owner.name}, by an allocation that names no GPU"
        others = _neighbours(described, _held(described))
        return f"on {names}, {'shared with ' + ', '.join(others) if others else 'not shared'}"
    never = explanation.NEVER in (refusal or pod.annotations_of(described.manifest).get(contract.REASON, ""))
    return {
        "NotOurs": "asks for no share of a GPU",
        "Waiting": "waits, and fits no GPU of this cluster even if all are free: change what it asks for"
        if never
        else "waits for a GPU: the placer places it once it fits",
        "Ended": "has ended and holds nothing",
        "NotPlaced": "holds nothing",
        "Unknown": f"not known: its GPUNode may not be read; it was given a share on {node_name(described.manifest)}",
    }[described.placement]


def _resize(described: DescribedPod) -> Page:
    if described.owner is None or described.entry is None:
        return ()
    waits = resize.pending(described.manifest, described.owner, described.entry)
    if waits is None:
        return ()
    return (
        *field("Holds", domain_resizing.amounts(described.entry.shares)),
        *field("Not Resized", waits[1], style="warn"),
    )


def _reason(described: DescribedPod) -> str:
    said = pod.annotations_of(described.manifest).get(contract.REASON, "")
    if described.gated:
        return said or "not judged yet"
    if described.entry is None or described.owner is None:
        return said
    waits = resize.pending(described.manifest, described.owner, described.entry)
    return f"{domain_resizing.WAITING}{waits[1]}" if waits else ""


def requested(manifest: pod.PodJson) -> tuple[list[str], list[str]]:
    try:
        parsed = request.parse(manifest)
    except errors.RequestError as error:
        return [], [str(error)]
    sentences = []
    for demand in parsed.demands:
        share = f"{demand.gpus} GPUs, each {demand.share}" if demand.gpus > 1 else str(demand.share)
        limit = demand.share.limit_percent
        most = f", at most {quantity.format_compute(limit)} while others are idle" if limit < 100 else ""
        sentences.append(f"{share}{most}, for {', '.join(demand.containers)}")
    return sentences, []


def _problems(described: DescribedPod) -> list[str]:
    """Return sentences about contradictions between pod and ledger, and about the state of its GPUs."""
    annotations = pod.annotations_of(described.manifest)
    labels = (described.manifest.get("metadata") or {}).get("labels") or {}
    sentences = []
    if labels.get(contract.SHARE_LABEL) != contract.SHARE_LABEL_VALUE:
        sentences.append(
            "the webhook has not seen this pod: it was created before gpushare was installed, or where the webhook "
            "does not apply; create it again"
        )
    if described.placement == "NotPlaced" and contract.ALLOCATION in annotations:
        node, allocation = node_name(described.manifest), annotations[contract.ALLOCATION]
        sentences.append(
            f"the ledger of {node} has no allocation for it, though it was given {allocation}"
            if described.owner
            else f"there is no GPUNode {node}, on which it was given the allocation {allocation}"
        )
    if described.entry is not None and (words := unbound(described.manifest)):
        sentences.append(words)
    sentences += not_started(described.manifest)
    if pod.is_terminal(described.manifest) and (described.manifest.get("status") or {}).get("message"):
        sentences.append(end(described.manifest))
    for gpu in _held(described):
        if any(word not in _NO_TROUBLE for word in gpu.statuses):
            reason = f": {gpu.gpu.health_reason}" if gpu.gpu.health_reason else ""
            sentences.append(f"{gpu.name} is {', '.join(gpu.statuses)}{reason}")
    return sentences


def end(manifest: pod.PodJson) -> str:
    """Return how an ended pod ended, and what to do if no controller recreates it."""
    status = manifest.get("status") or {}
    said = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key)) or str(status.get("phase"))
    is_alone = status.get("phase") == "Failed" and pod.controller(manifest) is None
    return f"{said}; no controller recreates it: delete it and create it again" if is_alone else said


def not_started(manifest: pod.PodJson) -> list[str]:
    """Return why the kubelet does not start containers, for instance because the agent refuses it for now."""
    sentences = []
    for container in as_kubectl.container_statuses(manifest):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _NOT_STARTED and waiting.get("message"):
            sentences.append(f"container {container.get('name')} waits with {waiting['reason']}: {waiting['message']}")
    return sentences


def unbound(manifest: pod.PodJson) -> str:
    """Return why a placed pod is not bound; empty if it is bound, has ended, or may be bound at any moment."""
    spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
    if spec.get("nodeName") or pod.is_terminal(manifest):
        return ""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return f"the scheduler cannot bind it to {node_name(manifest)}: {condition.get('message') or 'no reason'}"
    scheduler = str(spec.get("schedulerName") or "")
    if scheduler in {"", "default-scheduler"} or contract.SCHEDULING_GATE in pod.gates(manifest):
        return ""
    return f"the scheduler {errors.quoted(scheduler)} of its spec.schedulerName has not bound it: does it run?"
