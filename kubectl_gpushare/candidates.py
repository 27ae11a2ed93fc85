"""Candidates for shell completion, by small requests that time out after 3 s; any error means no candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from kubectl_gpushare import options

if TYPE_CHECKING:
    from kubectl_gpushare.source.chosen_source import Source

Candidates = list[Any]
# Options and the text so far -> names, or names with descriptions.
_Names = Callable[[options.Options, str], Iterable[str | tuple[str, str]]]


def _named(names: _Names) -> options.Completer:
    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Candidates:
        try:
            chosen = options.collect(dict(context.params))
            if not any(flag.startswith("--request-timeout") for flag in chosen.connection):
                chosen = dataclasses.replace(chosen, connection=(*chosen.connection, "--request-timeout=3s"))
            found = [(entry, None) if isinstance(entry, str) else entry for entry in names(chosen, incomplete)]
        except Exception:
            return []
        return [CompletionItem(name, help=text) for name, text in found if name.startswith(incomplete)]

    return complete


def _typed(names: Mapping[str, options.Completer]) -> options.Completer:
    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> Candidates:
        words = context.params.get("arguments") or ()
        if not words:
            return [CompletionItem(word) for word in names if word.startswith(incomplete)]
        kind = next((word for word in names if str(words[0]).rstrip("s") == word.rstrip("s")), "")
        found = names[kind](context, parameter, incomplete) if kind else []
        return [item for item in found if item.value not in words[1:]]

    return complete


def _source(chosen: options.Options) -> Source:
    from kubectl_gpushare.source import chosen_source

    return chosen_source.from_options(chosen)


def _gpus(chosen: options.Options, _incomplete: str) -> Iterable[tuple[str, str]]:
    from kubectl_gpushare.views import cell_figures, gpu_summary

    for gpu in gpu_summary.summarize(_source(chosen).gpu_nodes(label_selector=chosen.selector)):
        state = ",".join(gpu.statuses) or f"free {cell_figures.largest(gpu)}"
        yield gpu.name, f"{cell_figures.model(gpu.gpu)} {state}"


def _nodes(chosen: options.Options, _incomplete: str) -> Iterable[str]:
    from kubectl_gpushare.views import gpu_summary

    gpu_nodes = _source(chosen).gpu_nodes(label_selector=chosen.selector)
    return sorted((node.name for node in gpu_nodes), key=gpu_summary.natural)


def _entries(chosen: options.Options, _incomplete: str) -> Iterable[str]:
    from gpushare.config import config_choice

    return sorted({*(_source(chosen).configurations() or ()), *config_choice.BUILT_INS})


def _pods(chosen: options.Options, _incomplete: str) -> Iterable[str]:
    from gpushare import pod

    origin = _source(chosen)
    namespace = chosen.namespace or origin.default_namespace
    manifests = origin.pods(namespace=namespace, label_selector=chosen.selector) or ()
    return sorted(pod.namespaced_name(manifest)[1] for manifest in manifests)


def _pods_or_workloads(chosen: options.Options, incomplete: str) -> Iterable[str]:
    """Return names of pods; after `KIND/`, those of the workloads of this kind whose pods ask for shares."""
    kind, slash, _ = incomplete.partition("/")
    if not slash:
        return _pods(chosen, incomplete)
    from gpushare import pod
    from kubectl_gpushare.source import workloads

    origin, wanted = _source(chosen), workloads.KINDS.get(kind.lower(), "")
    names = set()
    for manifest in origin.pods(namespace=chosen.namespace or origin.default_namespace) or ():
        owner = pod.controller(manifest)
        if wanted == "Deployment":
            names.add(pod.deployment(manifest)[0])
        elif owner is not None and owner.kind == wanted:
            names.add(owner.name)
    return sorted(f"{kind}/{name}" for name in names if name)


def _policies(_chosen: options.Options, _incomplete: str) -> Iterable[str]:
    from gpushare.policies import POLICIES

    return POLICIES


def _namespaces(chosen: options.Options, _incomplete: str) -> Iterable[str]:
    from kubectl_gpushare.source import live_cluster

    return live_cluster.LiveCluster(chosen.kubectl()).namespaces()


nodes, pods, entries = _named(_nodes), _named(_pods), _named(_entries)
pods_or_workloads, policies, namespaces = _named(_pods_or_workloads), _named(_policies), _named(_namespaces)
contexts = _named(lambda chosen, _: chosen.kubectl().contexts())
configurations = _named(lambda chosen, _: [*_nodes(chosen, ""), *_entries(chosen, "")])
_types = {"gpu": _named(_gpus), "node": nodes, "pod": pods}
top = _typed({f"{kind}s": complete for kind, complete in _types.items()})
describe = _typed(_types)
cordon = _typed({kind: _types[kind] for kind in ("gpu", "node")})
