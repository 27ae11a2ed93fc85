"""Resources and replicas."""

from __future__ import annotations

from typing import Any

from gpushare.config import config_file
from gpushare.gpunode import Mode
from gpushare.modes import device_resources
from gpushare.modes.hardware_gpu import HardwareGpu, HardwareMigDevice, WholeDevice
from tests.conformance.operations.config import tree
from tests.conformance.runner import Case


def advertised_resources(case: Case) -> Any:
    gpus = [
        HardwareGpu(
            uuid=f"GPU-{index}",
            index=index,
            mig_capable=True,
            mig_enabled=gpu["migEnabled"],
            mig_devices=tuple(
                HardwareMigDevice(f"MIG-{index}-{number}", number, profile)
                for number, profile in enumerate(gpu["migDevices"])
            ),
        )
        for index, gpu in enumerate(case.input["gpus"])
    ]
    resources = device_resources.by_resource(gpus, strategy=case.input["strategy"])
    return {name: len(devices) for name, devices in resources.items()}


def replicate_devices(case: Case) -> Any:
    resources = {
        name: tuple(
            WholeDevice(uuid, index, uuid if ":" not in index else f"GPU of {uuid}") for uuid, index in devices.items()
        )
        for name, devices in case.input["resources"].items()
    }
    shared = [
        device_resources.replicated(config_file.replicated_resource(tree(entry)), Mode.TIME_SLICING)
        for entry in case.input["sharing"]
    ]
    owners = device_resources.claims(resources, shared)
    device_ids: dict[str, list[str]] = {}
    for name, devices in resources.items():
        for device in devices:
            owner = owners.get(device.uuid)
            ids = device_resources.identities(device.uuid, owner.replicas if owner else 1)
            device_ids.setdefault(owner.advertised if owner else name, []).extend(ids)
    return {name: sorted(ids) for name, ids in device_ids.items() if name}


OUTSIDE = {
    "discover_devices": "WSL2 and Tegra, which have no GPUs that can be told apart, are no nodes that gpushare runs on",
    "device_map_insert": "a container type inside NVIDIA's plugin; here the devices of a resource are a tuple",
}
OPERATIONS = {"advertised_resources": advertised_resources, "replicate_devices": replicate_devices}
