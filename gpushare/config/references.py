"""References to one device in a configuration: by index or by UUID."""

from __future__ import annotations

import enum
import re
from typing import Final

_NUMBER = r"(?:0|[1-9][0-9]{0,18}|0[0-9]{1,18})"
_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"

_GPU_INDEX: Final = re.compile(_NUMBER)
_MIG_INDEX: Final = re.compile(f"{_NUMBER}:{_NUMBER}")
_GPU_UUID: Final = re.compile(f"GPU-{_UUID}")
# Old drivers name a MIG device by its GPU and its instances.
_MIG_UUID: Final = re.compile(f"MIG-{_UUID}|MIG-GPU-{_UUID}/{_NUMBER}/{_NUMBER}")


class ReferenceKind(enum.StrEnum):
    """The kind of a reference to a GPU or MIG device: an index, a UUID, a model."""

    GPU_INDEX = "gpuIndex"
    MIG_INDEX = "migIndex"
    UUID = "uuid"


def is_gpu_index(text: str) -> bool:
    """Whether the text is the index of a GPU: `0`."""
    return _GPU_INDEX.fullmatch(text) is not None


def is_mig_index(text: str) -> bool:
    """Whether the text is the indices of a GPU and a MIG device: `0:1`."""
    return _MIG_INDEX.fullmatch(text) is not None


def is_gpu_uuid(text: str) -> bool:
    """Whether the text is the UUID of a GPU: `GPU-…`."""
    return _GPU_UUID.fullmatch(text) is not None


def is_mig_uuid(text: str) -> bool:
    """Whether the text is the UUID of a MIG device, also in the form of old drivers: `MIG-GPU-…/1/0`."""
    return _MIG_UUID.fullmatch(text) is not None


def kind(text: str) -> ReferenceKind | None:
    """Return how `text` refers to a device, or None if it does not."""
    if is_gpu_index(text):
        return ReferenceKind.GPU_INDEX
    if is_mig_index(text):
        return ReferenceKind.MIG_INDEX
    return ReferenceKind.UUID if is_gpu_uuid(text) or is_mig_uuid(text) else None
