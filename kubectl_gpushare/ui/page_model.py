"""The page's data as JSON, in the words of `top`: nodes with their GPUs and shares, the queue, and totals.

Values in, values out. A part that is unknown is left out, and `absent` has the reason, so that the page never shows a
zero for it. A node's item is built again only if the node, its pods or its usage changed: a cluster may have 40,000
GPUs.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, errors, ledger, node, pod, printable, quantity, request
from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode, Mode
from gpushare.whatif import unavailable_nodes
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import as_kubectl, cell_figures, gpu_summary, node_table, pod_page, tenants
from kubectl_gpushare.views.gpu_summary import GpuSummary

Json = dict[str, Any]

IDLE_PERCENT: Final = 1.0  # of a GPU's time: a share that uses less, and requests compute, holds it idle
MAX_WAITING: Final = 500  # pods in the queue; more are only counted
_NEAREST: Final = "; nearest: "  # in a refusal's sentence, before the nearest miss
# The labels of Nodes by which the usual clouds and autoscalers name a node pool, the first that a Node has.
POOL_LABELS: Final = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "agentpool",
)
NO_POOL: Final = "(no node pool)"


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """A snapshot, and what the page says about it as a whole."""

    snapshot: Snapshot
    at: float  # Unix seconds
    cluster: str = ""  # the context, or the names of files
    is_live: bool = False
    flags: tuple[str, ...] = ()  # of kubectl and --from, for commands to copy
    trouble: str = ""  # why it may be out of date
    usage_at: float | None = None
    why_no_usage: str = ""
    namespace: str = ""  # that the page shows first; empty: all
    pause_seconds: int = 0  # between two reads of a live cluster


def command(scene: Scene, *words: str) -> str:
    """Return a command to paste into a shell, with the flags that choose this cluster."""
    return shlex.join(printable.replaced(word) for word in ("kubectl", "gpushare", *words, *scene.flags))


class ModelBuilder:
    """Builds the page's model; keeps the items of nodes that have not changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[Any, ...], Json, tuple[GpuSummary, ...]]] = {}

    def build(self, scene: Scene) -> Json:
        snapshot = scene.snapshot
        pods, holders = tenants.Pods.from_snapshot(snapshot), _by_node(snapshot)
        absent = unavailable_nodes.find(snapshot.nodes, snapshot.node_objects)
        objects = {node.name(item): item for item in snapshot.node_objects or ()}
        order = sorted(snapshot.nodes, key=lambda each: gpu_summary.natural(each.name))
        pools = {each.name: _pool(node.labels(objects.get(each.name, {})) or each.labels) for each in order}
        keys: dict[str, tuple[Any, ...]] = {}
        for each in order:
            states = tuple((pod.uid(held), as_kubectl.pod_state(held)) for held in holders.get(each.name, ()))
            used = _used_on(each, snapshot)
            around = (pools[each.name], absent.get(each.name), states, used, pods.known, id(snapshot.profile))
            keys[each.name] = (each, *around)
        changed = {name for name, key in keys.items() if name not in self._known or self._known[name][0] != key}
        gpus: dict[str, list[GpuSummary]] = {name: [] for name in changed}
        for gpu in gpu_summary.summarize([each for each in order if each.name in changed], snapshot, absent):
            gpus[gpu.node].append(gpu)
        known = {}
        for each in order:
            if each.name not in changed:
                known[each.name] = self._known[each.name]
                continue
            its = tuple(gpus[each.name])
            row = node_table.NodeRow(each, its, gpu_summary.add_up(its), absent.get(each.name))
            known[each.name] = keys[each.name], node_item(row, pods, pools[each.name]), its
        self._known = known
        every = [gpu for _, _, its in known.values() for gpu in its]
        total = gpu_summary.add_up(every)
        return {
            "format": 1,
            "at": round(scene.at, 1),
            "cluster": {
                "name": scene.cluster,
                "live": scene.is_live,
                **_some(namespace=scene.namespace, pause=scene.pause_seconds),
            },
            "trouble": scene.trouble,
            "absent": _absent(scene),
            "notes": list(snapshot.notes),
            "problems": gpu_summary.ledger_problems(snapshot.nodes, every)[:20],
            "totals": totals(every, total, [item for _, item, _ in known.values()]),
            "nodes": [item for _, item, _ in known.values()],
            "heard": _heard(scene, objects),
            "queue": queue(scene),
            "empty": "" if every else gpu_summary.NO_NODES,
        }


def node_item(row: node_table.NodeRow, pods: tenants.Pods, pool: str) -> Json:
    loans = row.node.lent()
    return {
        "name": row.node.name,
        "pool": pool,
        "gpus": [gpu_item(gpu, pods, loans) for gpu in row.gpus],
        **_some(status=list(row.statuses), reason=row.reason),
    }


def gpu_item(gpu: GpuSummary, pods: tenants.Pods, loans: Mapping[tuple[str, int], int]) -> Json:
    device, (free, stranded), fits = gpu.gpu, gpu.parts, gpu.largest
    measured = gpu.measured
    return {
        "index": device.index,
        "uuid": device.uuid,
        "model": cell_figures.model(device),
        "bytes": device.memory_bytes,
        **_some(
            mode="" if device.mode is Mode.FRACTIONAL else device.mode.value,
            isolation="" if gpu.isolation == "arbiter" else gpu.isolation,
            status=list(gpu.statuses),
            reason=gpu.reason,
            gone=gpu.gone,
            cordoned=device.cordoned,
            ill=not device.healthy,
            trouble=_is_trouble(gpu),
            held=[gpu.used.request_percent, gpu.used.memory_bytes] if gpu.used.holders else [],
            free=list(gpu.free) if any(gpu.free) else [],
            fits=cell_figures.share(*fits).replace("+", " + ") if fits else "",
            stranded=round(stranded / free, 3) if free else 0,
            strandedGpus=round(stranded, 4),
            shares=[_share(gpu, holder, pods, loans) for holder in gpu.used.holders],
            devices=[f"{given.namespace}/{given.pod}: {given.count} {given.resource}" for given in gpu.devices or ()],
        ),
        **({} if measured is None else {"used": _used_pair(measured.memory_bytes, measured)}),
    }


def _share(gpu: GpuSummary, holder: Allocation, pods: tenants.Pods, loans: Mapping[tuple[str, int], int]) -> Json:
    if len(holder.shares) == 1:  # nearly all
        percent, memory_bytes = holder.shares[0].held_percent, holder.shares[0].held_bytes
    else:
        percent, memory_bytes = ledger.held(holder, gpu.gpu.uuid)
    there = [share for share in holder.shares if gpu.gpu.uuid in share.gpu_uuids]
    limit = max((share.limit_percent for share in there), default=100)
    memory_limit = max((share.memory_limit_bytes or 0 for share in there), default=0)
    used = None
    if pods.usage is not None and gpu.measured is not None:
        used = pods.usage.of_pod(gpu.node, holder.pod.namespace, holder.pod.name, [gpu.gpu.uuid])
    manifest = pods.holder(holder)
    state = as_kubectl.pod_state(manifest) if manifest else "Gone" if pods.known else ""
    if holder.is_nomination:
        state = "Nominated"
    elif holder.is_backfill_reservation:
        state = "Held"
    elif holder.reserved_until is not None:
        state = "Reserved"
    # A failed GPU computes nothing, so its shares are not idle.
    is_idle = used is not None and not used.bound and used.compute_percent < IDLE_PERCENT and percent > 0
    is_idle &= gpu.gpu.healthy and not gpu.gone
    return {
        "pod": str(holder.pod),
        "percent": percent,
        "bytes": memory_bytes,
        **_some(
            limit=limit if limit < 100 else 0,
            state="" if state == "Running" else state,
            hold=holder.is_backfill_reservation,
            idle=is_idle and not holder.is_backfill_reservation and holder.reserved_until is None,
            lent=tenants.lent_to(holder, gpu.gpu.uuid, loans),
            memoryLimit=memory_limit if memory_limit > memory_bytes else 0,
            isolation="" if holder.labels.isolation.value == "arbiter" else holder.labels.isolation.value,
            since=_seconds(as_kubectl.pod_started(manifest)) if manifest else None,
        ),
        **({} if used is None else {"used": _used_pair(used.memory_bytes, used)}),
    }


def _used_pair(memory_bytes: int, used: Any) -> list[float | None]:
    return [None if used.bound else round(used.compute_percent, 1), memory_bytes]


def totals(gpus: Sequence[GpuSummary], total: gpu_summary.Sum, nodes: Iterable[Json]) -> Json:
    """Return the sums over all GPUs; `used` and `idle` only if something was measured."""
    shared = [gpu for gpu in gpus if gpu.shared]
    measured = [gpu.measured for gpu in shared if gpu.measured is not None]
    shares = [share for item in nodes for gpu in item["gpus"] for share in gpu.get("shares", ())]
    idle = [share for share in shares if share.get("idle")]
    used: Json = {}
    if measured:
        whole = sum(used.compute_percent for used in measured)
        used = {
            "used": {
                "gpus": round(whole / 100, 3),
                "bytes": sum(used.memory_bytes for used in measured),
                "of": len(measured),
                "least": len(measured) < len(shared) or any(used.bound for used in measured),
            },
            "idle": {"shares": len(idle), "gpus": round(sum(share["percent"] for share in idle) / 100, 3)},
        }
    return {
        "gpus": total.gpus,
        "shared": len(shared),
        "pods": total.pods,
        "allocated": [total.request_percent, total.total_percent],
        "memory": [total.memory_bytes, total.total_memory_bytes],
        "free": list(total.free),
        "freeGpus": round(total.free_gpus, 3),
        "stranded": round(total.stranded_gpus, 3),
        "trouble": sum(_is_trouble(gpu) for gpu in gpus),
        "largest": cell_figures.largest(total.largest) if total.largest else "",
        **used,
    }


def _is_trouble(gpu: GpuSummary) -> bool:
    """Whether something is wrong with the GPU or its node; a cordon is a person's choice."""
    is_lost = gpu.unavailable is not None and gpu.unavailable.word != "NodeCordoned"
    return gpu.gone or gpu.over_committed or not gpu.gpu.healthy or is_lost


def queue(scene: Scene) -> Json:
    """Return the gated pods, by priority, then age; `why` instead if pods could not be read."""
    if scene.snapshot.pods is None:
        return {"pods": [], "why": _note(scene.snapshot, "pods") or "pods were not read"}
    gated = [each for each in scene.snapshot.pods if contract.SCHEDULING_GATE in pod.gates(each)]
    gated.sort(key=lambda each: (-pod.priority(each), _created(each), pod.namespaced_name(each)))
    return {
        "pods": [_waiting(scene, each) for each in gated[:MAX_WAITING]],
        **_some(more=max(0, len(gated) - MAX_WAITING)),
        "percent": sum(map(_asked_percent, gated)),
    }


def _waiting(scene: Scene, manifest: pod.PodJson) -> Json:
    namespace, name = pod.namespaced_name(manifest)
    asks, wrong = pod_page.requested(manifest)
    said = str(pod.annotations_of(manifest).get(contract.REASON, "")) or "; ".join(wrong)
    reason, _, nearest = said.partition(_NEAREST)
    where, _, lacks = nearest.partition(" ")
    return {
        "pod": f"{namespace}/{name}",
        "asks": asks,
        "reason": reason or "not judged yet",
        **_some(nearest=where, lacks=lacks, since=_seconds(_created(manifest)), priority=pod.priority(manifest)),
        "command": command(scene, "why", name, "-n", namespace),
    }


def _asked_percent(manifest: pod.PodJson) -> int:
    try:
        parsed = request.parse(manifest)
    except errors.RequestError:
        return 0
    return sum(demand.gpus * demand.share.request_percent for demand in parsed.demands)


def _created(manifest: pod.PodJson) -> str:
    return str((manifest.get("metadata") or {}).get("creationTimestamp") or "")


def _seconds(moment: str) -> float | None:
    try:
        return quantity.parse_time(moment) if moment else None
    except ValueError:
        return None


def _heard(scene: Scene, objects: Mapping[str, node.NodeJson]) -> Json:
    """Return when each node was last heard (Unix seconds) and by whom; a node that is missing has no known time."""
    answered = scene.snapshot.usage.nodes if scene.snapshot.usage else frozenset()
    heard: Json = {}
    for gpu_node in scene.snapshot.nodes:
        if gpu_node.name in answered and scene.usage_at is not None:
            heard[gpu_node.name] = [round(scene.usage_at), "agent"]
        elif at := _heartbeat(objects.get(gpu_node.name)):
            heard[gpu_node.name] = [round(at), "kubelet"]
    return heard


def _heartbeat(manifest: node.NodeJson | None) -> float | None:
    conditions = ((manifest or {}).get("status") or {}).get("conditions") or ()
    times = [_seconds(str(each.get("lastHeartbeatTime") or "")) for each in conditions if each.get("type") == "Ready"]
    return next(filter(None, times), None)


def _absent(scene: Scene) -> Json:
    """Return why parts are missing: the rest of a sentence that begins with "n/a, because"."""
    return _some(
        used=scene.why_no_usage if scene.snapshot.usage is None else "",
        pods=_note(scene.snapshot, "pods") or "no pods were read" if scene.snapshot.pods is None else "",
        nodes="Nodes could not be read" if scene.snapshot.node_objects is None else "",
    )


def _note(snapshot: Snapshot, word: str) -> str:
    return next((note.partition(": ")[2] for note in snapshot.notes if word in note.partition(": ")[0]), "")


def _pool(labels: Mapping[str, Any]) -> str:
    return next((str(labels[key]) for key in POOL_LABELS if labels.get(key)), NO_POOL)


def _by_node(snapshot: Snapshot) -> dict[str, list[pod.PodJson]]:
    found: dict[str, list[pod.PodJson]] = {}
    for manifest in snapshot.pods or ():
        if name := pod_page.node_name(manifest):
            found.setdefault(name, []).append(manifest)
    return found


def _used_on(gpu_node: GpuNode, snapshot: Snapshot) -> tuple[Any, ...] | None:
    usage = snapshot.usage
    if usage is None or gpu_node.name not in usage.nodes:
        return None
    gpus = [gpu.uuid for gpu in gpu_node.gpus]
    held = [
        usage.shares.get((entry.pod.namespace, entry.pod.name, uuid))
        for entry in gpu_node.allocations
        for uuid in entry.gpu_uuids
    ]
    return (*(usage.gpus.get(uuid) for uuid in gpus), *(usage.devices.get(uuid) for uuid in gpus), *held)


def _some(**values: Any) -> Json:
    """Leave out what is empty: most GPUs have no trouble, and there may be thousands."""
    return {key: value for key, value in values.items() if value}


def difference(before: Json, after: Json) -> Json:
    """Return what `after` changes: changed nodes whole, the names of nodes that are gone, and other changed values."""
    old = {item["name"]: item for item in before["nodes"]}
    new = {item["name"]: item for item in after["nodes"]}
    changed = [item for name, item in new.items() if old.get(name) is not item and old.get(name) != item]
    rest = {key: value for key, value in after.items() if key != "nodes" and before.get(key) != value}
    return {**rest, **_some(changed=changed, gone=[name for name in old if name not in new])}
