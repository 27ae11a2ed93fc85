"""Answers to the page's questions, from the verbs' own engine and views: why, fit, defrag and describe.

Each answer has the verb's page, the GPUs to light up, and the command that gives the same answer in a terminal. The
page shows the commands; none is run.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

import click

from gpushare import contract, errors, isolation, pod
from gpushare.defragmentation import evicting, goals
from gpushare.defragmentation.moves import DefragPlan
from gpushare.gpunode import GpuNode
from gpushare.placement import Placement, explanation, filters
from gpushare.refusal import Cause
from gpushare.whatif.requesting_pod import RequestingPod
from gpushare.whatif.world import World
from kubectl_gpushare import options, plugin_errors
from kubectl_gpushare.commands import describe
from kubectl_gpushare.commands import fit as fit_command
from kubectl_gpushare.commands import why as why_command
from kubectl_gpushare.output import values
from kubectl_gpushare.source import chosen_source
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.ui import page_model
from kubectl_gpushare.ui.page_model import Json, Scene
from kubectl_gpushare.views import defrag, fit, node_table, tenants, why

Question = Mapping[str, str]  # a parameter's name -> its value
# What a request may say on the page, as the flags of `fit` -> the annotation.
ASKED: Final = {name.replace("_", "-"): key for name, (key, _, _) in fit_command.ASKED.items()}
_ON: Final = "on_gpu"  # the GPU that gets a verdict: the page asks for it, and no word that is typed has a "_"
_QUOTA: Final = "quota"  # the rule that rejects all GPUs
MAX_NEAREST: Final = 12  # candidates that light up


class PageAnswers:
    """PageAnswers about the cluster as it is when the question comes."""

    def __init__(self, origin: chosen_source.Source, chosen: options.Options, scene: Callable[[], Scene]) -> None:
        self._origin = origin
        self._chosen = chosen
        self._scene = scene
        self._lock = threading.Lock()  # a World is not thread-safe, and several tabs may ask at once
        self._world: tuple[Snapshot, World] | None = None
        self._answers = {"why": self._why, "fit": self._fit, "defrag": self._defrag, "describe": self._describe}

    def __contains__(self, name: str) -> bool:
        return name in self._answers

    def answer(self, name: str, question: Question) -> Json:
        """Return the answer, or `error` with a sentence."""
        try:
            with self._lock:
                return self._answers[name](question)
        except click.ClickException as error:
            return {"error": error.format_message()}
        except (plugin_errors.PluginError, errors.GpushareError) as error:
            return {"error": str(error)}

    def _why(self, question: Question) -> Json:
        scene = self._scene()
        manifest = _pod(scene.snapshot, question.get("pod", ""))
        snapshot = chosen_source.with_storage(self._origin, scene.snapshot, [manifest])
        namespace, name = pod.namespaced_name(manifest)
        notes = list(snapshot.notes)
        described, found = why_command.reasons_of(self._origin, manifest, snapshot, notes)
        document = why.document(described, found, notes)
        return {
            "page": page_json(why.page(described, found, notes)),
            "nearest": [
                {"gpu": miss["gpu"], "why": miss["reason"], "rule": miss["rule"]}
                for miss in document["candidates"][:MAX_NEAREST]
            ],
            "choices": [gpu for choice in document["choices"] for gpu in _each_gpu(choice["gpus"])],
            "changes": document["changes"],
            "command": page_model.command(scene, "why", name, "-n", namespace),
        }

    def _describe(self, question: Question) -> Json:
        scene, kind, name = self._scene(), question.get("kind", ""), question.get("name", "")
        if kind not in describe.FINDERS:
            raise plugin_errors.PluginError(f'invalid kind "{kind}": must be one of {", ".join(describe.FINDERS)}')
        namespace, _, rest = name.rpartition("/")
        parts = {"pod": (namespace, rest), "node": (name,)}.get(kind, ())
        if not name or not all(map(options.is_name, parts)):
            raise plugin_errors.PluginError(f'"{name}" cannot be the name of a {kind}')
        words, chosen = [kind, name], self._chosen
        if kind == "pod":
            name = rest
            chosen, words = dataclasses.replace(chosen, namespace=namespace), [kind, name, "-n", namespace]
        (page, _), *_ = describe.FINDERS[kind](self._origin, name, chosen)
        return {"page": page_json(page()), "command": page_model.command(scene, "describe", *words)}

    def _fit(self, question: Question) -> Json:
        """Return where a request fits: the engine's choice, and each GPU that every filter accepts."""
        scene = self._scene()
        words = {name: value for name, value in question.items() if name != _ON}
        for name, value in words.items():
            if name not in ASKED and name != "namespace":
                known = ", ".join(f"{name}=" for name in (*ASKED, "namespace"))
                raise plugin_errors.PluginError(f'unknown word "{name}=": must be one of {known}')
            if not value:
                raise plugin_errors.PluginError(f'"{name}=" has no value: write one after the "=", or remove the word')
        namespace = words.pop("namespace", self._chosen.namespace or self._default_namespace)
        if not options.is_name(namespace):
            raise plugin_errors.PluginError(f'namespace "{namespace}" cannot be the name of a namespace')
        annotations = {ASKED[name]: value for name, value in words.items()}
        if not any(key in annotations for key in contract.SHARE_KEYS):
            raise plugin_errors.PluginError("specify the size of the share, such as 0.5 + 16Gi")
        world, notes = self._current_world(scene.snapshot), list(scene.snapshot.notes)
        found, _ = fit_command.placed(self._origin, world, [fit_command.described(namespace, annotations)], notes)
        result, flags = found.fits[0], [f"--{name}={words[name]}" for name in ASKED if name in words]
        if namespace != self._default_namespace:
            flags += ["-n", namespace]
        by_quota = str(result.refusal) if result.refusal and result.refusal.cause is Cause.QUOTA else ""
        fits, counts, verdict = _verdicts(world, result.wanted.asked, question.get(_ON, ""), by_quota)
        return {
            "page": page_json(fit.page(found, notes)),
            "best": [gpu for where in result.gpus for gpu in _each_gpu(where)],
            "reason": str(result.refusal or ""),
            "more": None if found.more is None else found.more + 1,
            "fits": fits,
            "counts": counts,
            "verdict": verdict,
            "command": page_model.command(scene, "fit", *flags),
        }

    @cached_property
    def _default_namespace(self) -> str:
        return self._origin.default_namespace

    def _current_world(self, snapshot: Snapshot) -> World:
        if self._world is None or self._world[0] is not snapshot:
            self._world = snapshot, snapshot.world()
        return self._world[1]

    def _defrag(self, question: Question) -> Json:
        scene, notes = self._scene(), list[str]()
        snapshot = scene.snapshot
        if snapshot.pods is None:
            raise plugin_errors.PluginError("no plan without the pods, which could not be read")
        snapshot = chosen_source.with_storage(self._origin, snapshot, filter(pod.asks_for_share, snapshot.pods))
        notes += snapshot.notes
        budgets, world = self._budgets(notes), snapshot.world(claims_are_all=True)
        before = {name: view.node for name, view in world.views.items()}
        words: list[str] = []
        if name := question.get("pod", ""):
            manifest = _pod(snapshot, name)
            asked = RequestingPod.from_manifest(manifest)
            if reason := goals.pointless(manifest, asked):
                raise plugin_errors.PluginError(reason)
            wanted, words = [(name, asked)], [*reversed(pod.namespaced_name(manifest))]
            words.insert(1, "-n")
        else:
            wanted = goals.waiting(world, snapshot.pods or ())
        plan = goals.make_room(world, wanted, budgets) if wanted else goals.largest_hole(world, budgets)
        changed = [view.node for name, view in world.views.items() if view.node is not before[name]]
        extra = ["--apply"] if plan.moves else []
        return {
            "page": page_json(defrag.page(plan, notes)),
            "moves": _moves(plan),
            "after": _items(changed, snapshot),
            "command": page_model.command(scene, "defrag", *words, *extra),
        }

    def _budgets(self, notes: list[str]) -> evicting.Budgets:
        read = partial(chosen_source.read, self._origin.budgets, chosen_source.BUDGETS, notes)
        return evicting.Budgets.from_manifests(read() or ())


def _pod(snapshot: Snapshot, name: str) -> pod.PodJson:
    for manifest in snapshot.pods or ():
        if "/".join(pod.namespaced_name(manifest)) == name:
            return manifest
    raise plugin_errors.KubectlNotFound(f'pod "{name}" is gone, or pods could not be read')


def _verdicts(world: World, asked: RequestingPod, named: str, by_quota: str) -> tuple[dict[str, str], list[Json], str]:
    """Return by node a digit per GPU (1: it fits), how many GPUs each rule rejects, and the reason of GPU `named`.

    by_quota: why a ResourceQuota rejects the pod on every GPU, if one does.
    """
    answer = world.place(asked.manifest, asked.request)
    tried = isolation.choices(asked.request, world.profile.isolation)
    kind = answer.isolation if isinstance(answer, Placement) else tried[0].isolation
    request = isolation.resolved(asked.request, kind)
    node_filter, demand = world.node_filter(asked.manifest, request), request.demands[0]
    fits: dict[str, str] = {}
    counts: dict[str, int] = {}
    verdict = ""
    for view in world.views.values():
        closed = node_filter(view.node.name) if view.node.gpus else None
        digits = {}
        for gpu, used in view.gpus():
            no = (explanation.NODE_RULE, closed, 0.0) if closed else None
            no = (_QUOTA, f"cannot take it: {by_quota}", 0.0) if by_quota else no
            no = no or filters.reject(filters.FilterInput(gpu, used, demand.share, request.constraints))
            digits[gpu.uuid] = "0" if no else "1"
            if no:
                counts[no[0]] = counts.get(no[0], 0) + 1
            if named == f"{view.node.name}/{gpu.index}":
                verdict = no[1] if no else "fits"
        fits[view.node.name] = "".join(digits[gpu.uuid] for gpu in sorted(view.node.gpus, key=lambda gpu: gpu.index))
    phrases = {name: rule.phrase for name, rule in filters.RULES.items()}
    phrases |= {explanation.NODE_RULE: "on nodes that cannot take the pod", _QUOTA: "beyond the ResourceQuota"}
    return fits, [{"phrase": phrases[name], "gpus": count} for name, count in counts.items()], verdict


def _moves(plan: DefragPlan) -> list[Json]:
    return [
        {
            "pod": "/".join(pod.namespaced_name(move.manifest)),
            "from": _each_gpu(move.before),
            "to": _each_gpu(move.after),
        }
        for move in plan.moves
    ]


def _each_gpu(text: str) -> list[str]:
    """Return `gpu-1/0` and `gpu-1/2` for `gpu-1/0,2`; a node's name alone as it is."""
    node, _, indexes = text.rpartition("/")
    return [f"{node}/{index}" for index in indexes.split(",")] if re.fullmatch(r"[\d,]+", indexes) and node else [text]


def _items(nodes: Iterable[GpuNode], snapshot: Snapshot) -> list[Json]:
    pods = dataclasses.replace(tenants.Pods.from_snapshot(snapshot), usage=None)
    rows = node_table.build(dataclasses.replace(snapshot, nodes=tuple(nodes), usage=None))
    return [page_model.node_item(row, pods, "") for row in rows]


def page_json(page: values.Page) -> list[Json]:
    """Return a page of fields and sections as JSON, with the styles of its words."""
    parts: list[Json] = []
    for part in page:
        if isinstance(part, values.Field):
            parts.append({"key": part.key, "values": list(part.values), "style": part.style})
        else:
            parts.append({"title": part.title, "blocks": [*map(_block, part.blocks)], "style": part.style})
    return parts


def _block(block: values.Block) -> Any:
    if isinstance(block, str):
        return block
    if isinstance(block, values.Table):
        return {"columns": [column.header for column in block.columns], "rows": [*map(_row, block.rows)]}
    if isinstance(block, values.Picture):
        return f"{block.label} {block.caption}"
    return {"commands": list(block.lines)}


def _row(row: values.Row) -> list[Sequence[str]]:
    return [[cell, ""] if isinstance(cell, str) else [cell.text, cell.style] for cell in row]
