"""The values of GPU labels. Pure.

They are exactly NVIDIA's, so that node selectors written for GPU Feature Discovery keep working.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

PREFIX: Final = "nvidia.com/"
Labels = dict[str, str]

_DROPPED: Final = re.compile(r"[^A-Za-z0-9\-_. ]")
_MAX_CHARACTERS: Final = 63  # the maximum length of a label's value
_PCI_VGA: Final = 0x030000
_PCI_3D: Final = 0x030200
_MODES: Final = {_PCI_VGA: "graphics", _PCI_3D: "compute"}
# By the first compute capability of each family. A GPU's family is the last line with its major version that does not
# exceed its capability.
_FAMILIES: Final = (
    ((1, 0), "tesla"),
    ((2, 0), "fermi"),
    ((3, 0), "kepler"),
    ((5, 0), "maxwell"),
    ((6, 0), "pascal"),
    ((7, 0), "volta"),
    ((7, 5), "turing"),
    ((8, 0), "ampere"),
    ((8, 9), "ada-lovelace"),
    ((9, 0), "hopper"),
    ((10, 0), "blackwell"),
    ((12, 0), "blackwell"),
    ((13, 0), "rubin"),
)
UNDEFINED: Final = "undefined"
UNKNOWN: Final = "unknown"


class DriverVersionError(ValueError):
    """The driver's version has an unexpected form; the message gives the valid ones."""


def sanitised(text: str) -> str:
    """Return `text` as a label's value: invalid characters are dropped, and words are joined by `-`."""
    return "-".join(_DROPPED.sub("", text).split())


def fitting(value: str) -> str:
    """Return the value as the API server accepts it: at most 63 characters, with a letter or digit at both ends."""
    return value[:_MAX_CHARACTERS].strip("-_.")


def family(capability: tuple[int, int]) -> str:
    """Return the architecture of a compute capability; `undefined` if NVIDIA has not named it."""
    known = [name for since, name in _FAMILIES if since[0] == capability[0] and since <= capability]
    return known[-1] if known else UNDEFINED


def mode(pci_classes: Sequence[int]) -> Labels:
    """Return the label `gpu.mode` for GPUs with these 24-bit PCI classes; empty without GPUs."""
    if not pci_classes:
        return {}
    word = _MODES.get(pci_classes[0], UNKNOWN) if len(set(pci_classes)) == 1 else UNKNOWN
    return {f"{PREFIX}gpu.mode": word}


def versions(driver: str, cuda: tuple[int, int]) -> Labels:
    """Return the labels of driver version and newest supported CUDA version. Raises DriverVersionError."""
    parts = driver.split(".")
    if not 2 <= len(parts) <= 3:
        raise DriverVersionError(f"the driver's version is {driver!r}, and not of the form X.Y or X.Y.Z")
    major, minor, revision = [*parts, ""][:3]
    cuda_major, cuda_minor = map(str, cuda)
    return {
        f"{PREFIX}{key}": value
        for key, value in {
            "cuda.driver.major": major,
            "cuda.driver.minor": minor,
            "cuda.driver.rev": revision,
            "cuda.runtime.major": cuda_major,
            "cuda.runtime.minor": cuda_minor,
            "cuda.driver-version.major": major,
            "cuda.driver-version.minor": minor,
            "cuda.driver-version.revision": revision,
            "cuda.driver-version.full": driver,
            "cuda.runtime-version.major": cuda_major,
            "cuda.runtime-version.minor": cuda_minor,
            "cuda.runtime-version.full": f"{cuda_major}.{cuda_minor}",
        }.items()
    }
