"""Derives the effect of changed entries of the ConfigMap, or of a node's label, on the nodes that follow them. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from gpushare import errors
from gpushare.config import config_choice
from gpushare.config.config_choice import ActiveConfig
from gpushare.gpunode import GpuNode
from kubectl_gpushare.views import configuration_change, gpu_summary

Labels = Mapping[str, str]
Entries = Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class NodeEffect:
    """A node that would follow another configuration: its name, or the `problem` why the node would follow none.

    changes: a line per GPU; they are missing if the node cannot have that configuration.
    """

    node: str
    config: str
    changes: tuple[str, ...] = ()
    problem: str = ""

    def lines(self) -> Iterator[str]:
        """Return it for people; a problem as a line that begins with `warning: `."""
        if self.problem:
            yield f"warning: {self.node} would stay as it is: {self.problem}"
            return
        yield f"{self.node} would follow {self.config}:"
        yield from (f"  {change}" for change in self.changes)


def of_entries(
    nodes: Iterable[GpuNode], labels: Mapping[str, Labels], before: Entries, after: Entries
) -> list[NodeEffect]:
    """Return the nodes for which other entries of the ConfigMap make a difference; `labels`: of each, by name."""
    known = sorted((node for node in nodes if node.name in labels), key=lambda node: gpu_summary.natural(node.name))
    return [
        _effect(node, followed)
        for node in known
        if (followed := _followed(after, labels[node.name])) != _followed(before, labels[node.name])
    ]


def of_labels(node: GpuNode, after: Labels, entries: Entries) -> NodeEffect:
    """Return what the node would be with these labels."""
    return _effect(node, _followed(entries, after))


def _followed(entries: Entries, labels: Labels) -> ActiveConfig | str:
    """The configuration of a node with these labels, or why it has none."""
    label = config_choice.label_of(labels)
    built_in = config_choice.built_in(None, entries, label=label)
    if built_in is not None:
        return built_in
    try:
        name = config_choice.select(entries, label=label)
    except errors.ConfigError as error:
        return str(error)
    return ActiveConfig(name, entries.get(name, ""))


def _effect(node: GpuNode, followed: ActiveConfig | str) -> NodeEffect:
    if isinstance(followed, str):
        return NodeEffect(node.name, "", problem=followed)
    try:
        changes = tuple(configuration_change.lines(node, followed.text))
    except errors.ConfigError as error:
        return NodeEffect(node.name, followed.name, problem=str(error))
    return NodeEffect(node.name, followed.name, changes)
