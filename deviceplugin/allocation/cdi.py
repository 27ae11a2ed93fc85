"""CDI device names, and their place in the answer to Allocate:
https://github.com/cncf-tags/container-device-interface
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

VENDOR: Final = "k8s.device-plugin.nvidia.com"
ANNOTATIONS: Final = "cdi-annotations"
CRI: Final = "cdi-cri"


@dataclasses.dataclass(frozen=True, slots=True)
class CdiAnswer:
    """The CDI part of an answer to Allocate."""

    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    devices: tuple[str, ...] = ()


def is_strategy(word: str) -> bool:
    """Whether this device list strategy uses CDI."""
    return word in (ANNOTATIONS, CRI)


def device_name(vendor: str, kind: str, identity: str) -> str:
    """Return `vendor/kind=identity`."""
    return f"{vendor}/{kind}={identity}"


def share_name(device_ids: Iterable[str]) -> str:
    """Return a share container's device name, derived from its device ids, which no other container has meanwhile."""
    return hashlib.sha256("\n".join(sorted(device_ids)).encode()).hexdigest()[:32]


def answer(names: Sequence[str], strategies: Sequence[str], *, prefix: str, answer_id: str) -> CdiAnswer:
    """Return the names in the form that these strategies use; empty if there are no names."""
    if not names:
        return CdiAnswer()
    return CdiAnswer(
        annotations={f"{prefix}nvidia-device-plugin_{answer_id}": ",".join(names)} if ANNOTATIONS in strategies else {},
        devices=tuple(names) if CRI in strategies else (),
    )
