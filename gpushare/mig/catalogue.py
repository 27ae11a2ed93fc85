"""What is published about each model: for checking a config without the GPU. On a node, NVML is asked instead.

Places and numbers as `nvidia-smi mig -lgip` and `-lgipp` show them on A30, A100 and H100; for H200 and later, the
counts of NVIDIA's documentation with H100's places.
https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html
"""

from __future__ import annotations

import re
from typing import Final

from gpushare.mig import profile
from gpushare.mig.geometry import Geometry, ProfileGeometry

# name: (device profile id, memory slices, starts, at most)
_Rule = tuple[int, int, tuple[int, ...], int]
_EIGHT: Final[dict[str, _Rule]] = {
    "1g": (19, 1, (0, 1, 2, 3, 4, 5, 6), 7),
    "1g+me": (20, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    "1g double": (15, 2, (0, 2, 4, 6), 4),
    "2g": (14, 2, (0, 2, 4), 3),
    "3g": (9, 4, (0, 4), 2),
    "4g": (5, 4, (0,), 1),
    "7g": (0, 8, (0,), 1),
}
_FOUR: Final[dict[str, _Rule]] = {
    "1g": (14, 1, (0, 1, 2, 3), 4),
    "1g+me": (21, 1, (0, 1, 2, 3), 1),
    "1g+gfx": (47, 1, (0, 1, 2, 3), 4),
    "1g+me.all": (65, 1, (0, 1, 2, 3), 1),
    "1g-me": (67, 1, (0, 1, 2, 3), 4),
    "2g": (5, 2, (0, 2), 2),
    "2g+me": (6, 2, (0, 2), 1),
    "2g+gfx": (35, 2, (0, 2), 2),
    "2g+me.all": (64, 2, (0, 2), 1),
    "2g-me": (66, 2, (0, 2), 2),
    "4g": (0, 4, (0,), 1),
    "4g+gfx": (32, 4, (0,), 1),
}

# Of each model its rules, and its profiles: a profile without its memory is the name of its rule.
_MODELS: Final[dict[str, tuple[dict[str, _Rule], str]]] = {
    "A30-24GB": (_FOUR, "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb"),
    "A100-40GB": (_EIGHT, "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
    "A100-80GB": (_EIGHT, "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
    "H100-80GB": (_EIGHT, "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
    "H100-94GB": (_EIGHT, "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"),
    "H100-96GB": (_EIGHT, "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
    "H200-141GB": (_EIGHT, "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
    "B200-180GB": (_EIGHT, "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"),
    "GB200-186GB": (_EIGHT, "1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb"),
    "RTX-PRO-6000": (
        _FOUR,
        "1g.24gb 1g.24gb+me 1g.24gb+gfx 1g.24gb+me.all 1g.24gb-me "
        "2g.48gb 2g.48gb+gfx 2g.48gb+me.all 2g.48gb-me 4g.96gb 4g.96gb+gfx",
    ),
}

# What NVML calls a model, the least memory of that row (GiB), and the row; the first that fits.
_NVML_NAMES: Final = (
    (r"\bGB200\b", 0, "GB200-186GB"),
    (r"\bB200\b", 0, "B200-180GB"),
    (r"\b(GH200 144|H200)", 0, "H200-141GB"),
    (r"\bGH200\b", 0, "H100-96GB"),
    (r"\bH100\b", 94.5, "H100-96GB"),
    (r"\bH100\b", 90, "H100-94GB"),
    (r"\bH100\b", 70, "H100-80GB"),
    (r"\bA100\b", 70, "A100-80GB"),
    (r"\bA100\b", 0, "A100-40GB"),
    (r"\bA30\b", 0, "A30-24GB"),
    (r"\bRTX PRO 6000\b", 0, "RTX-PRO-6000"),
)


def _geometry(name: str) -> Geometry:
    rules, profiles = _MODELS[name]
    kinds: dict[str, ProfileGeometry] = {}
    for text in profiles.split():
        rule = re.sub(r"\.\d+gb", "", text)
        rule = f"{rule} double" if rule in kinds else rule
        kinds[rule] = ProfileGeometry(profile.parse(text), *rules[rule])
    return Geometry(
        name,
        gpu_slices=max(kind.gpu_slices for kind in kinds.values()),
        memory_slices=max(kind.memory_slices for kind in kinds.values()),
        kinds=tuple(kinds.values()),
    )


MODELS: Final = {name: _geometry(name) for name in _MODELS}


def of_gpu(model: str, memory_bytes: int) -> Geometry | None:
    """The geometry of the GPU that NVML calls `model`; None for one that cannot be cut, or is unknown here."""
    for pattern, least_gib, name in _NVML_NAMES:
        if re.search(pattern, model) and memory_bytes >= least_gib * (1 << 30):
            return MODELS[name]
    return None
