"""Names of the Container Device Interface, and how a runtime is told them: https://github.com/cncf-tags/container-device-interface"""

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
    """What goes into the answer of Allocate."""

    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    devices: tuple[str, ...] = ()


def is_strategy(word: str) -> bool:
    """Whether this device list strategy is one of CDI's."""
    return word in (ANNOTATIONS, CRI)


def device_name(vendor: str, kind: str, identity: str) -> str:
    """`vendor/kind=identity`."""
    return f"{vendor}/{kind}={identity}"


def share_name(device_ids: Iterable[str]) -> str:
    """The name, of what a container with these ids gets: nobody else has them meanwhile."""
    return hashlib.sha256("\n".join(sorted(device_ids)).encode()).hexdigest()[:32]


def answer(names: Sequence[str], strategies: Sequence[str], *, prefix: str, answer_id: str) -> CdiAnswer:
    """How these strategies tell the names; nothing where there are none."""
    if not names:
        return CdiAnswer()
    return CdiAnswer(
        annotations={f"{prefix}nvidia-device-plugin_{answer_id}": ",".join(names)} if ANNOTATIONS in strategies else {},
        devices=tuple(names) if CRI in strategies else (),
    )
