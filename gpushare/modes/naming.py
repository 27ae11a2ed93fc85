"""Maps each device of a node to a resource, before anything is shared: by MIG strategy, then by the first matching
rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpushare import errors
from gpushare.config import names
from gpushare.config.model import ResourceRule, Resources
from gpushare.mig import profile
from gpushare.modes.hardware_gpu import HardwareGpu, WholeDevice, parts, whole

NONE: Final = "none"  # MIG is ignored
SINGLE: Final = "single"  # all GPUs of the node are partitioned alike; their MIG devices are called GPUs
NO_RULES: Final = Resources()

Named = dict[str, tuple[WholeDevice, ...]]


def resources(gpus: Sequence[HardwareGpu], *, strategy: str, rules: Resources = NO_RULES) -> Named:
    """Return the devices of each resource, by index. Raises ConfigError if the strategy forbids the node's devices."""
    by_name: dict[str, list[WholeDevice]] = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        for name, device in named(gpu, strategy=strategy, rules=rules):
            by_name.setdefault(name, []).append(device)
    if strategy == SINGLE:
        _check_uniform(gpus)
    return {name: tuple(devices) for name, devices in by_name.items()}


def named(gpu: HardwareGpu, *, strategy: str, rules: Resources = NO_RULES) -> tuple[tuple[str, WholeDevice], ...]:
    """Return the devices of one GPU, each after its resource: the GPU, or its MIG devices in MIG mode."""
    if gpu.mig_enabled and strategy != NONE:
        return tuple((mig_resource(kind, strategy, rules), device) for kind, device in parts(gpu))
    name = _first(rules.gpus, gpu.model) or names.GPU
    return ((name, whole(gpu)),)


def mig_resource(kind: str, strategy: str, rules: Resources = NO_RULES) -> str:
    """Return the resource of MIG devices of that profile. Raises ConfigError if there is none."""
    name = _first(rules.mig, kind)
    if name is None and strategy == SINGLE:
        name = names.GPU
    elif name is None:
        try:
            name = profile.parse(kind).resource
        except profile.ProfileError as error:
            raise errors.ConfigError(str(error)) from error
    if name is None:
        raise errors.ConfigError(
            f"MIG profile '{kind}' does not match any resource patterns: "
            "it is a part of a GPU instance, so give it a name under resources.mig"
        )
    return name


def _first(rules: Sequence[ResourceRule], text: str) -> str | None:
    return next((rule.name for rule in rules if names.matches(rule.pattern, text)), None)


def _check_uniform(gpus: Sequence[HardwareGpu]) -> None:
    with_mig = [gpu for gpu in gpus if gpu.mig_enabled]
    if not with_mig:
        return
    empty = next((gpu for gpu in with_mig if not gpu.mig_devices), None)
    if empty is not None:
        raise errors.ConfigError(
            "at least one device with migEnabled=true was not configured correctly: "
            f"device {empty.index} has no MIG devices configured, as MIG strategy single needs"
        )
    if len(with_mig) < len(gpus):
        raise errors.ConfigError(
            "all devices on the node must be configured with the same migEnabled value under MIG strategy single: "
            "write mixed"
        )
    kinds = sorted({mig_device.profile for gpu in with_mig for mig_device in gpu.mig_devices})
    if len(kinds) > 1:
        raise errors.ConfigError(
            f"more than one MIG device type present on node ({', '.join(kinds)}) under MIG strategy single: write mixed"
        )
