"""What a configuration would change on a node, GPU by GPU, from what its GPUNode says. Pure.

A GPUNode has modes, not MIG devices: a GPU that is cut already and that the configuration does not cut is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpushare import contract, errors
from gpushare.config import reading, restrictions, settings
from gpushare.config.model import Config
from gpushare.gpu import Gpu, Mode
from gpushare.gpunode import GpuNode
from gpushare.mig import catalogue
from gpushare.modes import naming, plan
from gpushare.modes.assignment import Assignment
from gpushare.modes.card import Card


def lines(node: GpuNode, text: str, *, strict: bool = False) -> Iterator[str]:
    """A line a GPU, then the warnings. Raises ConfigError if the node could not be so."""
    config = reading.read(text)
    if strict:
        config = restrictions.strict(config)
    found = settings.effective(config, strict=strict)
    cards = [_card(gpu) for gpu in node.gpus]
    if found.mig_strategy != naming.NONE:
        cut = [_is_cut(config, card) for card in cards]
        cards = [card for card, is_cut in zip(cards, cut, strict=True) if is_cut or not card.mig_enabled]
    made = plan.plan(config, cards, mig_strategy=found.mig_strategy)
    for gpu in sorted(node.gpus, key=lambda gpu: gpu.index):
        yield f"GPU {gpu.index} ({gpu.model}, {gpu.uuid}): {_change(node, gpu, made.assignments.get(gpu.uuid))}"
    for warning in (*config.warnings, *made.warnings):
        yield f"warning: {warning}"


def _change(node: GpuNode, gpu: Gpu, after: Assignment | None) -> str:
    if after is None:
        return "stays mig, with the MIG devices that it has"
    if after.mode is gpu.mode:
        return f"stays {after}"
    users = [
        f"{entry.pod.namespace}/{entry.pod.name}"
        for entry in node.allocations
        if gpu.uuid in entry.gpu_uuids and not entry.id.startswith(contract.HOLD_PREFIX)
    ]
    waits = f", once these pods have ended: {', '.join(sorted(users))}" if users else ""
    return f"{gpu.mode} → {after}{waits}"


def _is_cut(config: Config, card: Card) -> bool:
    if isinstance(config.mig, str):
        return card.mig_capable
    return any(entry.applies_to(index=card.index, hardware=None) for entry in config.mig)


def _card(gpu: Gpu) -> Card:
    geometry = catalogue.of_gpu(gpu.model, gpu.memory_bytes)
    return Card(
        gpu.uuid,
        gpu.index,
        gpu.model,
        mig_capable=geometry is not None,
        mig_enabled=gpu.mode is Mode.MIG,
        geometry=geometry,
    )


def text_of(text: str, entry: str) -> str:
    """The configuration in a text: the text itself, or the `entry` of the ConfigMap that it is."""
    from kubectl_gpushare.views import configuration

    entries = configuration.entries_of(text)
    if entries is None:
        return text
    if entry not in entries:
        known = ", ".join(entries) or "none"
        raise errors.ConfigError(f"the ConfigMap has {known}: name one of them with --entry")
    return entries[entry]
