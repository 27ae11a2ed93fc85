"""Programs that print how GPUs are connected, according to the agent's driver module."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import pynvml

from deviceplugin.hardware import nvml, nvml_topology
from tests.deviceplugin.programs.failures import simgpu


def paths(uuids: list[str], *failure: str) -> None:
    nvml.Nvml()
    if failure:
        simgpu("fail", *failure)
    print({pair: (path.common, path.nvlinks) for pair, path in nvml_topology.paths(uuids).items()})


def cliques(uuids: list[str]) -> None:
    nvml.Nvml()
    print([*map(nvml_topology.clique, uuids)])


def on_its_way_into_a_fabric(uuid: str) -> None:
    """Fake the state in which a GPU joins a fabric; the simulated driver has no such state."""
    nvml.Nvml()

    def attached(state: int, cluster: Iterable[int]) -> str:
        def told(_: Any, pointer: Any) -> int:
            info = ctypes.cast(pointer, ctypes.POINTER(nvml_topology.FabricInfo)).contents
            info.cluster_uuid[:] = cluster
            info.clique_id, info.state = 7, state
            return pynvml.NVML_SUCCESS

        pynvml.nvmlDeviceGetGpuFabricInfo = told
        return nvml_topology.clique(uuid)

    print(repr(attached(pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, range(16))))
    print(repr(attached(pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS, range(16))))
    print(repr(attached(pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, [0] * 16)))
