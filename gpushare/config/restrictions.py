"""The effect of a file on NVIDIA's released binary, which reads names and lists of devices and then drops them.

`strict` does the same, for nodes that should behave as they did with it; otherwise names and lists work.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from gpushare.config import names
from gpushare.config.model import ALL, Config, ReplicatedResource, ReplicatedResources, Resources, Sharing

ADVICE: Final = "strict compatibility is on"


def strict(config: Config) -> Config:
    """Return the configuration as the released binary acts on it, with a warning for each dropped part.

    If both MPS and time-slicing are configured, only MPS is in force, as there.
    """
    warnings = list(config.warnings)
    if config.resources != Resources():
        warnings.append(f"resources has no effect: {ADVICE}, and customizing the 'resources' field is not supported")
    if config.sharing.mps is not None and config.sharing.time_slicing is not None:
        warnings.append(f"sharing.timeSlicing has no effect: {ADVICE}, and sharing.mps is set")
    if config.sharing.fractional:
        warnings.append(f"sharing.fractional has no effect: {ADVICE}")
    if config.mig:
        warnings.append(f"mig has no effect: {ADVICE}")
    mps = None if config.sharing.mps is None else replicated(config.sharing.mps, "sharing.mps", warnings)
    time_slicing = None
    if config.sharing.time_slicing is not None:
        time_slicing = replicated(config.sharing.time_slicing, "sharing.timeSlicing", warnings)
    return dataclasses.replace(
        config,
        resources=Resources(),
        sharing=Sharing(None if mps is not None else time_slicing, mps),
        mig=(),
        warnings=tuple(warnings),
    )


def replicated(replicated_resources: ReplicatedResources, path: str, warnings: list[str]) -> ReplicatedResources:
    """Return a list of shared resources without their names and devices; add a sentence to `warnings` for each."""
    return dataclasses.replace(
        replicated_resources,
        resources=tuple(
            _restricted(entry, replicated_resources.rename_by_default, f"{path}.resources[{index}]", warnings)
            for index, entry in enumerate(replicated_resources.resources)
        ),
    )


def _restricted(
    resource: ReplicatedResource, rename_by_default: bool, path: str, warnings: list[str]
) -> ReplicatedResource:
    rename = names.shared(resource.name) if rename_by_default else None
    if resource.rename != rename and resource.rename is not None:
        warnings.append(f"{path}.rename {resource.rename} has no effect: {ADVICE}")
    if resource.devices != ALL:
        warnings.append(f"{path}.devices {resource.devices} has no effect, all are shared: {ADVICE}")
    if resource.interval:
        warnings.append(f"{path}.interval {resource.interval} has no effect: {ADVICE}")
    return dataclasses.replace(resource, rename=rename, devices=ALL, interval="")
