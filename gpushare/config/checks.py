"""Invalid values and combinations of settings, as NVIDIA's plugin rejects them at its start."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from gpushare import errors
from gpushare.config.model import FlagValue, ReplicaStrategy, ReplicatedResources

DEVICE_LIST_STRATEGIES: Final = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
DEVICE_ID_STRATEGIES: Final = ("uuid", "index")
POLICIES: Final = ("distributed", "packed")
DISCOVERY_STRATEGIES: Final = ("auto", "nvml", "tegra")
MIG_STRATEGIES: Final = ("none", "single", "mixed")


def mps_default(written: ReplicatedResources) -> ReplicatedResources:
    """Return the file with `failRequestsGreaterThanOne` for MPS, its default: two replicas are no larger share."""
    if written.fail_requests_greater_than_one is not None:
        return written
    return dataclasses.replace(written, fail_requests_greater_than_one=True)


def settings(
    values: Mapping[str, FlagValue], *, strategy: ReplicaStrategy = ReplicaStrategy.NONE, has_nvml: bool = True
) -> None:
    """Check the effective value of every flag (`flags.effective`). Raises ConfigError naming the flag.

    strategy: how the node's devices are shared; has_nvml: whether the driver's library answers.
    """
    listed = values["plugin.deviceListStrategy"]
    strategies = listed if isinstance(listed, tuple) else (str(listed),)
    for word in strategies or ("",):
        _one_of(str(word), DEVICE_LIST_STRATEGIES, "invalid --device-list-strategy option: {}")
    if not has_nvml and any(str(word).startswith("cdi-") for word in strategies):
        raise errors.ConfigError(
            "CDI --device-list-strategy options are only supported on NVML-based systems: write envvar or volume-mounts"
        )
    _one_of(values["plugin.deviceIDStrategy"], DEVICE_ID_STRATEGIES, "invalid --device-id-strategy option: {}")
    _one_of(
        values["plugin.sharedDevicesAllocationPolicy"],
        POLICIES,
        "invalid --shared-devices-allocation-policy option: {}",
    )
    mig = values["migStrategy"]
    if strategy is ReplicaStrategy.MPS:
        if mig == "mixed":
            raise errors.ConfigError("using --mig-strategy=mixed is not supported with MPS: write none")
        if not values["mpsRoot"]:
            raise errors.ConfigError("using MPS requires --mps-root to be specified, such as /run/nvidia/mps")
    _one_of(values["deviceDiscoveryStrategy"], DISCOVERY_STRATEGIES, "invalid --device-discovery-strategy option {}")
    _one_of(mig, MIG_STRATEGIES, "unknown MIG strategy: {}")
    channels = values["imex.channelIDs"]
    imex_channels(channels if isinstance(channels, tuple) else ())


def imex_channels(identities: Sequence[int | str]) -> None:
    """Raise ConfigError unless the list is empty or [0]."""
    if tuple(identities) not in ((), (0,)):
        raise errors.ConfigError(f"invalid IMEX channel IDs: {list(identities)}: write [] or [0]")


def _one_of(value: FlagValue, words: Sequence[str], problem: str) -> None:
    if value not in words:
        raise errors.ConfigError(f"{problem.format(value)}: write one of {', '.join(words)}")
