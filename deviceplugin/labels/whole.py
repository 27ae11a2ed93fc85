"""All labels of a node with GPUs. Pure.

A node without a GPU, or whose driver does not answer though that is allowed, has none but the time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from deviceplugin.labels import gpu_resources, words

TIMESTAMP: Final = f"{words.PREFIX}gfd.timestamp"
MACHINE: Final = f"{words.PREFIX}gpu.machine"
CLIQUE: Final = f"{words.PREFIX}gpu.clique"
VGPU: Final = f"{words.PREFIX}vgpu.present"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the driver and the machine say of themselves.

    pci_classes, mig_capable: one of each GPU.
    cliques: of each GPU its NVLink fabric, `CLUSTER.CLIQUE`, or empty where it is in none.
    virtual: one of each GPU, whether it is a vGPU: a part that a hypervisor gives to this machine.
    """

    driver_version: str
    cuda_version: tuple[int, int]
    machine: str = ""
    gpus: tuple[gpu_resources.LabelledGpu, ...] = ()
    pci_classes: tuple[int, ...] = ()
    mig_capable: tuple[bool, ...] = ()
    cliques: tuple[str, ...] = ()
    virtual: tuple[bool, ...] = ()


def labels(
    facts: NodeFacts | None,
    *,
    strategy: str,
    sharing: gpu_resources.LabelledSharing,
    started: int | None = None,
) -> words.Labels:
    """The labels of a node with these facts; None where there is no driver.

    started: Unix seconds, for the label of the time; None for none.

    Raises StrategyError for a MIG strategy that does not exist, or that MPS cannot be with; VersionError.
    """
    time = {} if started is None else {TIMESTAMP: str(started)}
    if facts is None or not facts.gpus:
        return time
    return {
        **time,
        MACHINE: words.fitting(words.sanitised(facts.machine)) or words.UNKNOWN,
        **words.versions(facts.driver_version, facts.cuda_version),
        **gpu_resources.mig_capable(facts.mig_capable),
        **gpu_resources.mps_capable(sharing),
        **gpu_resources.of_node(facts.gpus, strategy, sharing),
        **words.mode(facts.pci_classes),
        **_clique(facts.cliques),
        VGPU: str(any(facts.virtual)).lower(),
    }


def _clique(cliques: Sequence[str]) -> words.Labels:
    """The fabric that all GPUs are in; nothing if there is none, or more than one."""
    return {CLIQUE: cliques[0]} if cliques and cliques[0] and len(set(cliques)) == 1 else {}
