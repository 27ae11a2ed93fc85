"""`config show`: the active and the requested configuration of a node, and what the node waits for. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gpushare import contract, errors
from gpushare.config import config_choice, config_file
from gpushare.config.config_choice import ActiveConfig
from gpushare.gpunode import GpuNode
from kubectl_gpushare.output import values
from kubectl_gpushare.output.values import (
    NONE,
    UNKNOWN,
    Cell,
    Column,
    Page,
    Section,
    Table,
    field,
    plain,
    section,
    sentence,
)
from kubectl_gpushare.views import config_sentences, configuration_change, gpu_summary, node_table

COLUMNS = (
    Column("NODE", least=14, middle=True),
    Column("CONFIG", least=8),
    Column("STATUS"),
    Column("GPUS", leave_out=2),
    Column("MODES", least=10, leave_out=1),
    Column("REASON", least=16, wrap=True),
)
ENTRY_COLUMNS = (Column("CONFIG"), Column("NODES"), Column("WHAT IT DOES", least=16, wrap=True))
_GPU_COLUMNS = (
    Column("GPU"),
    Column("Model", least=8, wrap=True),
    Column("Mode"),
    Column("Wanted", least=12, wrap=True),
    Column("Why Not Yet", least=20, wrap=True),
)

Entries = Mapping[str, str]  # the ConfigMap's


@dataclasses.dataclass(frozen=True, slots=True)
class NodeConfigState:
    """A node and its configuration."""

    node: GpuNode
    asked: ActiveConfig | None  # the entry that label and ConfigMap select, None if unknown
    why: str  # how it is selected, or why it cannot be
    in_force: ActiveConfig | None  # with the ConfigMap's text; None if the agent uses another

    @property
    def status(self) -> tuple[str, str, str]:
        valid, pending = (self.node.condition(name) for name in (_VALID, _PENDING))
        if valid is not None and valid.status != "True":
            return ("Refused" if valid.status == "False" else "Unknown"), "bad", valid.message
        if pending is not None and pending.trouble:
            return "Pending", "warn", pending.message
        if valid is None:
            return "Unknown", "warn", "its agent says nothing about its configuration"
        return "InForce", "good", ""

    @property
    def has_none(self) -> bool:
        """Whether the node never had a valid configuration, and therefore offers nothing."""
        valid = self.node.condition(_VALID)
        return valid is not None and valid.reason == contract.REASON_NOTHING_IN_FORCE


_VALID, _PENDING = contract.CONDITION_CONFIG_VALID, contract.CONDITION_CONFIG_PENDING


def for_node(node: GpuNode, labels: Mapping[str, str] | None, entries: Entries | None) -> NodeConfigState:
    """Return the state of a node; `labels` and `entries` are None if unknown."""
    asked, why = None, ""
    if labels is not None:
        asked, why = _followed(labels, entries)
    state = NodeConfigState(node, asked, why, None)
    known = {} if entries is None else with_built_ins(entries)
    # An agent that rejects its entry keeps its previous text, which is stored nowhere else.
    kept = state.status[0] == "Refused" and (asked is None or asked.name == node.config)
    if not kept and not state.has_none and (node.config in known or node.config == config_choice.EMPTY):
        return dataclasses.replace(state, in_force=ActiveConfig(node.config, known.get(node.config, "")))
    return state


def with_built_ins(entries: Entries) -> dict[str, str]:
    return {**{name: config.text for name, config in config_choice.BUILT_INS.items()}, **entries}


def page(state: NodeConfigState, notes: Sequence[str]) -> Page:
    word, style, message = state.status
    if state.in_force is not None:
        says = _what(state.in_force.text)
    elif state.has_none:
        says = "nothing: the node offers no GPU"
    elif word == "Refused":
        says = "what its agent has kept: it does not follow the ConfigMap as that is now"
    else:
        says = UNKNOWN
    return (
        *field("Name", state.node.name),
        *field("In Force", "nothing" if state.has_none else state.node.config or "no entry: the empty configuration"),
        *field("Asked For", state.asked.name if state.asked else UNKNOWN),
        *field("Because", state.why),
        *field("Status", word, style=style),
        *field("Reason", message),
        *field("It Says", says),
        Section("GPUs", (_gpus(state),) if state.node.gpus else (NONE,)),
        *section("Not Shown", notes, "warn"),
    )


def table(states: Sequence[NodeConfigState]) -> Table:
    return Table(COLUMNS, [_row(state) for state in states], what="nodes")


def entries_table(entries: Entries, followers: Sequence[GpuNode]) -> Table:
    rows = [
        (name, str(sum(node.config == name for node in followers)), _what(text) + " (built in)" * (name not in entries))
        for name, text in sorted(with_built_ins(entries).items())
    ]
    return Table(ENTRY_COLUMNS, rows)


def entry_page(name: str, text: str, followers: Sequence[GpuNode]) -> Page:
    following = sorted((node.name for node in followers if node.config == name), key=gpu_summary.natural)
    checked = next(config_sentences.checked(name, text))
    return (
        *field("Name", name),
        *field("It Says", checked.summary),
        *field("Problem", checked.problem, style="bad"),
        *field("Without Effect", *checked.warnings, style="warn"),
        *field("In Force On", ", ".join(following) or NONE),
    )


def document(states: Sequence[NodeConfigState], entries: Entries | None) -> values.Document:
    return values.list_document(
        "ConfigurationList",
        (_item(state) for state in states),
        configurations=None if entries is None else [{"name": name, "text": text} for name, text in entries.items()],
    )


def effective(text: str) -> dict[str, Any]:
    return config_sentences.effective(config_file.read(text))


def _followed(labels: Mapping[str, str], entries: Entries | None) -> tuple[ActiveConfig | None, str]:
    label = config_choice.label_of(labels)
    key = next((key for key in config_choice.LABELS if labels.get(key)), "")
    why = f"the node's label {key}" if label else "the node has no label that names another"
    if entries is None:
        return (ActiveConfig(label), why) if label else (None, why)
    built_in = config_choice.built_in(None, entries, label=label)
    if built_in is not None:
        lacks = "the ConfigMap has no such entry" if entries else "there is no ConfigMap"
        return built_in, f"{why}, and {lacks}: {built_in.name} is built in"
    try:
        name = config_choice.select(entries, label=label)
    except errors.ConfigError as error:
        return (ActiveConfig(label) if label else None), str(error)
    return ActiveConfig(name, entries.get(name, "")), why


def _what(text: str) -> str:
    checked = next(config_sentences.checked("", text))
    return checked.summary or f"nothing, as it would be refused: {checked.problem}"


def _gpus(state: NodeConfigState) -> Table:
    wanted, rows = _wanted(state), []
    for gpu in sorted(state.node.gpus, key=lambda gpu: gpu.index):
        changes = gpu.pending_mode is not None
        later = wanted.get(gpu.uuid, "") or str(gpu.pending_mode if changes else gpu.mode)
        why = sentence(gpu_summary.why_not_yet(state.node, gpu)) if changes else NONE
        rows.append((str(gpu.index), gpu.model, gpu.mode.value, Cell(later, "warn" if changes else ""), why))
    return Table(_GPU_COLUMNS, rows)


def _wanted(state: NodeConfigState) -> dict[str, str]:
    config = state.asked if state.asked is not None and state.asked.text else state.in_force
    if config is None:
        return {}
    try:
        plan = configuration_change.planned(state.node, config_file.read(config.text))
    except errors.ConfigError:
        return {}  # the node's conditions show the error
    return {uuid: str(assignment) for uuid, assignment in plan.assignments.items()}


def _row(state: NodeConfigState) -> values.Row:
    word, style, message = state.status
    modes = [gpu.mode.value for gpu in state.node.gpus]
    place = (state.node.name, plain(state.node.config), Cell(word, style))
    return (*place, str(len(modes)), node_table.mixed(modes), sentence(message))


def _item(state: NodeConfigState) -> dict[str, Any]:
    word, _, message = state.status
    return {
        "node": state.node.name,
        "config": state.node.config,
        "status": word,
        "reason": message,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "mode": gpu.mode.value,
                "pendingMode": gpu.pending_mode.value if gpu.pending_mode else "",
            }
            for gpu in state.node.gpus
        ],
    }
