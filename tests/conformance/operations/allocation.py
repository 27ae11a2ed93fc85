"""GetPreferredAllocation and Allocate."""

from __future__ import annotations

import collections
import itertools
from typing import Any

from deviceplugin.allocation import aligned, answer, preference
from deviceplugin.hardware import nvml_call
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from gpushare.config.node_settings import NodeSettings
from gpushare.gpunode import Mode
from gpushare.modes import device_resources
from gpushare.modes.assignment import Offered
from tests.conformance.runner import Case, Facets, OutsideError

MODES = {"none": Mode.EXCLUSIVE, "time-slicing": Mode.TIME_SLICING, "mps": Mode.MPS}


def offered(identity: str, *, index: str = "0", mode: Mode = Mode.EXCLUSIVE, alone: bool = False) -> Offered:
    # The number does not matter, only whether it is more than one.
    replicas = 2 if device_resources.is_replica(identity) and mode is not Mode.EXCLUSIVE else 1
    device = device_resources.device_of(identity)
    gpu = device if ":" not in index else f"GPU of {device}"
    return Offered(identity, device, gpu, index, mode if replicas > 1 else Mode.EXCLUSIVE, replicas, alone)


def get_preferred_allocation(case: Case) -> Any:
    values = case.input
    devices = {
        identity: offered(identity, index=str(index), mode=Mode.TIME_SLICING)
        for index, (gpu, replicas) in enumerate(values["replicas_per_gpu"].items())
        for identity in (f"{gpu}::{number}" for number in range(replicas))
    }
    chosen = preference.prefer(
        devices,
        available=list(devices) if values["available"] == "all" else values["available"],
        required=values["must_include"],
        size=values["size"],
        policy=values.get("policy", ""),
        scores={},
    )
    counts = collections.Counter(map(device_resources.device_of, chosen))
    return Facets(
        counts=dict(counts),
        counts_sorted_desc=sorted(counts.values(), reverse=True),
        size=len(chosen),
        contains=[identity for identity in case.expect.get("contains", ()) if identity in chosen],
        value=chosen,
        chosen=chosen,
        ids=chosen,
        first=list(chosen[: len(values["must_include"])]),
    )


def policy_prefers(case: Case) -> Any:
    ranks = {name: preference.rank(preference.Load(**case.input[name]), case.input["policy"]) for name in ("a", "b")}
    return "tie" if ranks["a"] == ranks["b"] else min(ranks, key=lambda name: ranks[name])


def preferred_allocation_algorithm(case: Case) -> Any:
    values = case.input
    if "/dev/dxg" in (values.get("paths") or ()):
        raise OutsideError("WSL2, whose one device stands for all GPUs, is no node that gpushare runs on")
    devices = [
        offered(f"device-{number}{'::0' if values.get('available_annotated') else ''}", index=index)
        for number, index in enumerate(values["indices"])
    ]
    return str(preference.algorithm(devices, [device.id for device in devices]))


def _scores(topology: dict[str, Any]) -> dict[tuple[int, int], int]:
    links: dict[tuple[int, int], list[str]] = collections.defaultdict(list)
    nvlinks: collections.Counter[tuple[int, int]] = collections.Counter()
    for connection in topology.get("pcie", ()):
        links[(connection["a"], connection["b"])].append(connection["type"])
    for link in topology.get("nvlinks", ()):
        nvlinks[(link["a"], link["b"])] += link["links"]
    return {
        pair: aligned.pair_score(links[pair], nvlinks=nvlinks[pair])
        for pair in itertools.combinations(range(topology["gpus"]), 2)
    }


def _aligned(case: Case, available: list[int], required: list[int], size: int) -> list[int]:
    scores = _scores(case.suite["topologies"][case.input["topology"]])
    return sorted(aligned.prefer(available, required=required, size=size, scores=scores))


def aligned_allocation(case: Case) -> Any:
    values = case.input
    return {"chosen": _aligned(case, values["available"], values["must_include"], values["size"])}


def aligned_allocation_sequence(case: Case) -> Any:
    free = list(range(case.suite["topologies"][case.input["topology"]]["gpus"]))
    chosen = []
    for size in case.input["sizes"]:
        chosen.append(_aligned(case, free, [], size))
        free = [gpu for gpu in free if gpu not in chosen[-1]]
    return {"chosen": chosen}


def validate_request(case: Case) -> None:
    query = case.input
    devices = {
        identity: offered(identity, mode=MODES[query["strategy"]], alone=bool(query.get("failRequestsGreaterThanOne")))
        for identity in query["devices"]
    }
    preference.check_request(query.get("resource", "nvidia.com/gpu"), query["requested"], devices)


def _settings(values: dict[str, Any]) -> NodeSettings:
    channels = values.get("imex_channels") or ()
    return NodeSettings(
        device_list_strategies=tuple(values.get("deviceListStrategy", ["envvar"])),
        device_id_strategy=values.get("deviceIDStrategy", "uuid"),
        cdi_annotation_prefix=values.get("cdiAnnotationPrefix", "cdi.k8s.io/"),
        pass_device_specs=values.get("passDeviceSpecs", False),
        dev_root=values.get("nvidiaDevRoot", "/"),
        gdrcopy=values.get("gdrcopyEnabled", False),
        gds=values.get("gdsEnabled", False),
        mofed=values.get("mofedEnabled", False),
        imex_channels=tuple(int(channel) for channel in channels),
    )


def allocate(case: Case) -> Any:
    values = case.input
    resource = values.get("resource", "nvidia.com/gpu")
    nodes = answer.DevicePaths(
        {uuid: tuple(paths) for uuid, paths in values.get("paths", {}).items()}, tuple(values.get("existing", ()))
    )
    containers = []
    for number, ids in enumerate(values["containers"]):
        devices = [
            offered(
                identity,
                index=values.get("indices", {}).get(device_resources.device_of(identity), "0"),
                mode=MODES[values.get("strategy", "none")],
            )
            for identity in ids
        ]
        root = values.get("mpsRoot", "")
        by_mps = any(device.mode is Mode.MPS for device in devices)
        response = answer.container_response(
            resource,
            devices,
            _settings(values),
            answer_id=values.get("response_id", "uuid"),
            nodes=nodes,
            mps=answer.MpsPaths(f"{root}/{resource}/pipe", f"{root}/shm") if by_mps else None,
            cdi_vendor=values.get("cdi_vendor", answer.CDI_VENDOR),
        )
        wanted = case.expect["containers"][number] if number < len(case.expect["containers"]) else {}
        containers.append(_fields(response, wanted, by_index=values.get("deviceIDStrategy") == "index"))
    return {"containers": containers}


def _fields(response: messages.ContainerAllocateResponse, wanted: dict[str, Any], *, by_index: bool) -> dict[str, Any]:
    """Return the fields of a response; empty ones only where the case names them."""
    envs = dict(response.envs)
    visible = "NVIDIA_VISIBLE_DEVICES"
    listed = (wanted.get("envs") or {}).get(visible, "")
    if by_index and sorted(envs.get(visible, "").split(",")) == sorted(listed.split(",")):
        envs[visible] = listed  # the order of several indices does not matter
    fields: dict[str, Any] = {
        "envs": envs,
        "mounts": [
            {"host": mount.host_path, "container": mount.container_path, "readOnly": mount.read_only}
            for mount in response.mounts
        ],
        "devices": [
            {"container": device.container_path, "host": device.host_path, "permissions": device.permissions}
            for device in response.devices
        ],
        "annotations": dict(response.annotations),
        "cdi_devices": [device.name for device in response.cdi_devices],
    }
    return {name: value for name, value in fields.items() if value or name in wanted}


def allocate_cdi(case: Case) -> Any:
    values = case.input
    settings = _settings(values)
    vendor = values.get("cdi_vendor", answer.CDI_VENDOR)
    response = answer.cdi_answer(
        [answer.cdi_device_name(vendor, "gpu", identity) for identity in values["device_ids"]]
        + [answer.cdi_device_name(vendor, "imex-channel", str(channel)) for channel in settings.imex_channels]
        + values["additional_cdi_devices"],
        settings.device_list_strategies,
        prefix=settings.cdi_annotation_prefix,
        answer_id=values["response_id"],
    )
    fields = {"annotations": dict(response.annotations), "cdi_devices": list(response.devices)}
    return {name: value for name, value in fields.items() if value or name in case.expect}


OPERATIONS = {
    "get_preferred_allocation": get_preferred_allocation,
    "policy_prefers": policy_prefers,
    "preferred_allocation_algorithm": preferred_allocation_algorithm,
    "aligned_allocation": aligned_allocation,
    "aligned_allocation_sequence": aligned_allocation_sequence,
    "validate_request": validate_request,
    "allocate": allocate,
    "allocate_cdi": allocate_cdi,
    "normalise_pci_bus_id": lambda case: nvml_call.kernel_address(case.input),
}
