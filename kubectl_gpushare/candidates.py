"""Candidates for shell completion: types, and the names of nodes, GPUs, pods, namespaces and contexts.

Completion must not get in the way: requests are small and time out after 3 s; any error means no candidates.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from kubectl_gpushare import options

_TIMEOUT = "--request-timeout=3s"
Candidates = list[Any]


def top(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Candidates:
    return _typed(context, incomplete, {"gpus": _gpus, "nodes": _nodes, "pods": _pods})


def describe(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Candidates:
    return _typed(context, incomplete, {"gpu": _gpus, "node": _nodes, "pod": _pods})


def cordon(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Candidates:
    return _typed(context, incomplete, {"gpu": _gpus, "node": _nodes})


def pods(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Candidates:
    return _quietly(_pods, context, incomplete)


def pods_or_workloads(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Candidates:
    """Names of pods; after `TYPE/`, of workloads with such pods."""
    kind, slash, _ = incomplete.partition("/")
    return _quietly(functools.partial(_workloads, kind) if slash else _pods, context, incomplete)


def policies(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Candidates:
    from gpushare.policies import POLICIES

    return [CompletionItem(name) for name in POLICIES if name.startswith(incomplete)]


def nodes(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Candidates:
    return _quietly(_nodes, context, incomplete)


def configurations(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Candidates:
    return _quietly(lambda chosen: [*_nodes(chosen), *_entries(chosen)], context, incomplete)


def entries(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Candidates:
    return _quietly(_entries, context, incomplete)


def namespaces(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Candidates:
    return _quietly(lambda chosen: _cluster(chosen).namespaces(), context, incomplete)


def contexts(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Candidates:
    return _quietly(lambda chosen: chosen.kubectl().contexts(), context, incomplete)


_Names = Callable[[options.Options], Iterable[str | tuple[str, str]]]


def _typed(context: click.Context, incomplete: str, names: dict[str, _Names]) -> Candidates:
    words = context.params.get("arguments") or ()
    if not words:
        return [CompletionItem(word) for word in names if word.startswith(incomplete)]
    kind = next((word for word in names if str(words[0]).rstrip("s") == word.rstrip("s")), "")
    if not kind:
        return []
    return [item for item in _quietly(names[kind], context, incomplete) if item.value not in words[1:]]


def _quietly(names: _Names, context: click.Context, incomplete: str) -> Candidates:
    chosen = options.collect(dict(context.params))
    if not any(flag.startswith("--request-timeout") for flag in chosen.connection):
        chosen = dataclasses.replace(chosen, connection=(*chosen.connection, _TIMEOUT))
    try:
        candidates = [(entry, None) if isinstance(entry, str) else entry for entry in names(chosen)]
    except Exception:
        return []
    return [CompletionItem(name, help=text) for name, text in candidates if name.startswith(incomplete)]


def _gpus(chosen: options.Options) -> Iterable[tuple[str, str]]:
    from kubectl_gpushare.source import chosen_source
    from kubectl_gpushare.views import cell_figures, gpu_summary

    for gpu in gpu_summary.summarize(chosen_source.from_options(chosen).gpu_nodes(label_selector=chosen.selector)):
        yield (
            gpu.name,
            f"{cell_figures.model(gpu.gpu)} {','.join(gpu.statuses) or 'free ' + cell_figures.largest(gpu)}",
        )


def _nodes(chosen: options.Options) -> Iterable[str]:
    from kubectl_gpushare.source import chosen_source
    from kubectl_gpushare.views import gpu_summary

    nodes = chosen_source.from_options(chosen).gpu_nodes(label_selector=chosen.selector)
    return sorted((node.name for node in nodes), key=gpu_summary.natural)


def _entries(chosen: options.Options) -> Iterable[str]:
    from gpushare.config import config_choice
    from kubectl_gpushare.source import chosen_source

    entries = chosen_source.from_options(chosen).configurations()
    return sorted({*(entries or ()), *config_choice.BUILT_INS})


def _pods(chosen: options.Options) -> Iterable[str]:
    from gpushare import pod
    from kubectl_gpushare.source import chosen_source

    origin = chosen_source.from_options(chosen)
    manifests = (
        origin.pods(namespace=chosen.namespace or origin.default_namespace, label_selector=chosen.selector) or ()
    )
    return sorted(pod.namespaced_name(manifest)[1] for manifest in manifests)


def _workloads(kind: str, chosen: options.Options) -> Iterable[str]:
    """`KIND/NAME` of the workloads of this kind whose pods ask for shares."""
    from gpushare import pod
    from kubectl_gpushare.source import chosen_source, workloads

    origin, wanted = chosen_source.from_options(chosen), workloads.KINDS.get(kind.lower(), "")
    names = set()
    for manifest in origin.pods(namespace=chosen.namespace or origin.default_namespace) or ():
        owner = pod.controller(manifest)
        if wanted == "Deployment":
            names.add(pod.deployment(manifest)[0])
        elif owner is not None and owner.kind == wanted:
            names.add(owner.name)
    return sorted(f"{kind}/{name}" for name in names if name)


def _cluster(chosen: options.Options) -> Any:
    from kubectl_gpushare.source import live_cluster

    return live_cluster.LiveCluster(chosen.kubectl())
