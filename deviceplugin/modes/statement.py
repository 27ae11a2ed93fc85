"""What the GPUNode says of its configuration: whether it is good, and who is in the way of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from deviceplugin.state.node_state import Statement
from gpushare import contract
from gpushare.config import config_choice
from gpushare.config.config_choice import ActiveConfig
from gpushare.contract import CONDITION_CONFIG_PENDING as PENDING
from gpushare.contract import CONDITION_CONFIG_VALID as VALID
from gpushare.gpu import Gpu
from gpushare.gpunode import Condition
from gpushare.modes.assignment import Assignment

_BUILT_IN: Final = "no entry of the ConfigMap applies, so every GPU takes shares by annotation"
_BUILT_IN_STAYS: Final = "every GPU goes on taking shares by annotation, as without a ConfigMap"
_MAX_NAMED: Final = 20  # of those who use a GPU


def statement(
    *,
    config: ActiveConfig | None,
    problem: str,
    warnings: Sequence[str],
    gpus: Iterable[Gpu],
    wanted: Mapping[str, Assignment],
    waiting: Mapping[str, tuple[str, ...]],
    failed: Mapping[str, str],
    changing: Iterable[str],
) -> Statement:
    """All that is to be said.

    config: the last good one, None where there was none; problem: why the one asked for is not, empty when it is;
    warnings: what in it has no effect.
    waiting: by UUID, who uses a GPU that is to change; failed: why one could not be set up; changing: all that are not
    as `wanted` yet.
    """
    if config is None:
        message = f"{problem}; nothing is in force, and this node offers no GPU until that is put right"
        valid = Condition(VALID, "False", contract.REASON_NOTHING_IN_FORCE, message)
        return Statement("", (valid, Condition(PENDING, "False", "Done", "no GPU is configured")))
    name, shown = config.name, config.name or "the empty configuration"
    is_entry = config != config_choice.BUILT_IN  # which is called default, and is no entry of that name
    if problem:
        message = f"{problem}; {shown} stays in force" if is_entry else f"{problem}; {_BUILT_IN_STAYS}"
        valid = Condition(VALID, "False", "Refused", message)
    else:
        in_force = f"{shown} is in force" if is_entry else _BUILT_IN
        valid = Condition(VALID, "True", "InForce", "; ".join((in_force, *warnings)))
    pending = sorted(changing)
    if not pending:
        return Statement(name, (valid, Condition(PENDING, "False", "Done", "every GPU is as configured")))
    sentences = [
        _sentence(gpu, wanted[gpu.uuid], waiting.get(gpu.uuid, ()), failed.get(gpu.uuid, ""))
        for gpu in gpus
        if gpu.uuid in pending and gpu.uuid in wanted
    ]
    reason = "SetUpFailed" if failed else "GpusInUse" if waiting else "Changing"
    return Statement(name, (valid, Condition(PENDING, "True", reason, "; ".join(sentences))))


def _sentence(gpu: Gpu, wanted: Assignment, users: tuple[str, ...], failure: str) -> str:
    what = f"GPU {gpu.index} ({gpu.uuid}) is to become {wanted}"
    if failure:
        return f"{what}, which failed: {failure}"
    if not users:
        return f"{what}: it is being changed"
    more = f" and {len(users) - _MAX_NAMED} more" if len(users) > _MAX_NAMED else ""
    return f"{what} once it is not used any more by {', '.join(users[:_MAX_NAMED])}{more}"
