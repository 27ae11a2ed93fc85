"""Decides which entry of the ConfigMap a node follows, and whether that changes anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gpushare import contract, errors

LABELS: Final = (contract.NODE_CONFIG_LABEL, contract.NVIDIA_CONFIG_LABEL)  # the first that exists wins
NAMED: Final = "default"  # the entry for the fallback `named`
FALLBACKS: Final = ("named", "single")
EMPTY: Final = ""  # no entry: the empty configuration


def label_of(labels: Mapping[str, object]) -> str | None:
    """Return the name of the configuration in a node's label, or None."""
    return next((str(labels[key]) for key in LABELS if labels.get(key)), None)


def select(
    entries: Collection[str], *, label: str | None, default: str = "", fallbacks: Sequence[str] = FALLBACKS
) -> str:
    """Return the entry for a node; EMPTY for the empty configuration. Raises ConfigError if there is none.

    label: the node's, None or "" if absent. A label has no fallback: an unknown name is never replaced by a default.
    default: the entry for nodes without a label. fallbacks: in order, `named` (the entry called default), `single` (the
    only entry) and `empty`. Entries that begin with two dots belong to the kubelet and do not count.
    """
    known = sorted(entry for entry in entries if not entry.startswith(".."))
    if not known:
        raise errors.ConfigError(f"no configuration files available: {_remedy(label or default or NAMED)}")
    shown = ", ".join(known)
    if label and label not in known:
        said = f"the ConfigMap has {shown}; change the node's label, or {_remedy(label)}"
        raise errors.ConfigError(f"specified config {label} does not exist: {said}")
    if not label and default and default not in known:
        raise errors.ConfigError(f"specified default config {default} does not exist: the ConfigMap has {shown}")
    if label or default:
        return label or default
    for fallback in fallbacks:
        if fallback not in {"empty", *FALLBACKS}:
            raise errors.ConfigError(f"unknown fallback strategy: {fallback}: write named, single or empty")
        if fallback == "empty":
            return EMPTY
        if fallback == "named" and NAMED in known:
            return NAMED
        if fallback == "single" and len(known) == 1:
            return known[0]
    raise errors.ConfigError(
        "no config was set, no default was provided, and all fallbacks failed: label the node with one of "
        f"{shown}, or call one of them {NAMED}"
    )


def _remedy(name: str) -> str:
    return f"add it with kubectl gpushare config set {name} -f FILE"


@dataclasses.dataclass(frozen=True, slots=True)
class ActiveConfig:
    """The configuration that a node follows: the name of its entry (EMPTY: none) and its text."""

    name: str
    text: str = ""


# Used if the ConfigMap has no entry of that name. The installation contains no ConfigMap, so that an upgrade cannot
# overwrite the administrator's.
BUILT_IN: Final = ActiveConfig("default", "sharing: {fractional: {resources: [{name: nvidia.com/gpu}]}}\n")
BUILT_IN_EXCLUSIVE: Final = ActiveConfig("exclusive", "version: v1\n")
# Of a node with BORROW_LABEL, regardless of the ConfigMap. It stays in force when the label goes, unless another label
# names a configuration: the GPUs may still be the other device plugin's.
BORROWED: Final = ActiveConfig("borrowed", BUILT_IN.text)
BUILT_INS: Final[Mapping[str, ActiveConfig]] = {config.name: config for config in (BUILT_IN, BUILT_IN_EXCLUSIVE)}


def built_in(
    current: ActiveConfig | None, entries: Collection[str], *, label: str | None, default: str = ""
) -> ActiveConfig | None:
    """Return the built-in configuration for a node, or None if it follows the ConfigMap.

    A label (or `default`) may name one that the ConfigMap lacks; a node without either gets BUILT_IN if there are no
    entries at all. An entry that disappears changes nothing: `current` stays unless it is itself built in.
    """
    asked = label or default
    config = BUILT_INS.get(asked or ("" if entries else BUILT_IN.name))
    if config is None or config.name in entries:
        return None
    held = current is not None and current not in BUILT_INS.values()
    return config if not held or (asked and current and current.name != asked) else None


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """The configuration in force; `problem`: why the requested one is not."""

    in_force: ActiveConfig | None
    problem: str = ""


def decide(
    current: ActiveConfig | None,
    entries: dict[str, str],
    *,
    label: str | None,
    default: str = "",
    fallbacks: Sequence[str] = FALLBACKS,
) -> Decision:
    """Decide what a node follows with this label and this ConfigMap (name to text).

    An unknown or missing entry leaves `current` in force and gives the reason; so must the caller for an invalid one.
    """
    try:
        name = select(entries, label=label, default=default, fallbacks=fallbacks)
    except errors.ConfigError as error:
        return Decision(current, problem=str(error))
    return Decision(ActiveConfig(name, entries.get(name, "")))
