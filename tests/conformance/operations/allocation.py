"""GetPreferredAllocation and Allocate."""

from __future__ import annotations

import collections
import itertools
from typing import Any

from deviceplugin.allocation import aligned, answer, cdi, greedy, preference, refusing_containers
from deviceplugin.hardware import pci
from gpushare.config.node_settings import NodeSettings
from gpushare.gpu import Mode
from gpushare.modes import sharing
from gpushare.modes.offering import Offered
from tests.conformance.runner import Case, Facets, OutsideError

MODES = {"none": Mode.EXCLUSIVE, "time-slicing": Mode.TIME_SLICING, "mps": Mode.MPS}


def offered(identity: str, *, index: str = "0", mode: Mode = Mode.EXCLUSIVE, alone: bool = False) -> Offered:
    # How many there are does not matter, only whether there are several.
    replicas = 2 if sharing.is_replica(identity) and mode is not Mode.EXCLUSIVE else 1
    device = sharing.device_of(identity)
    gpu = device if ":" not in index else f"GPU of {device}"
    return Offered(identity, device, gpu, index, mode if replicas > 1 else Mode.EXCLUSIVE, replicas, alone)


def get_preferred_allocation(case: Case) -> Any:
    given = case.input
    devices = {
        identity: offered(identity, index=str(index), mode=Mode.TIME_SLICING)
        for index, (gpu, replicas) in enumerate(given["replicas_per_gpu"].items())
        for identity in (f"{gpu}::{number}" for number in range(replicas))
    }
    chosen = preference.prefer(
        devices,
        available=list(devices) if given["available"] == "all" else given["available"],
        required=given["must_include"],
        size=given["size"],
        policy=given.get("policy", ""),
        scores={},
    )
    counts = collections.Counter(map(sharing.device_of, chosen))
    return Facets(
        counts=dict(counts),
        counts_sorted_desc=sorted(counts.values(), reverse=True),
        size=len(chosen),
        contains=[identity for identity in case.expect.get("contains", ()) if identity in chosen],
        value=chosen,
        chosen=chosen,
        ids=chosen,
        first=list(chosen[: len(given["must_include"])]),
    )


def policy_prefers(case: Case) -> Any:
    ranks = {name: greedy.rank(greedy.Load(**case.input[name]), case.input["policy"]) for name in ("a", "b")}
    return "tie" if ranks["a"] == ranks["b"] else min(ranks, key=lambda name: ranks[name])


def preferred_allocation_algorithm(case: Case) -> Any:
    given = case.input
    if "/dev/dxg" in (given.get("paths") or ()):
        raise OutsideError("WSL2, whose one device stands for all GPUs, is no node that gpushare runs on")
    devices = [
        offered(f"device-{number}{'::0' if given.get('available_annotated') else ''}", index=index)
        for number, index in enumerate(given["indices"])
    ]
    return str(preference.algorithm(devices, [device.id for device in devices]))


def _scores(topology: dict[str, Any]) -> dict[tuple[int, int], int]:
    links: dict[tuple[int, int], list[str]] = collections.defaultdict(list)
    nvlinks: collections.Counter[tuple[int, int]] = collections.Counter()
    for one in topology.get("pcie", ()):
        links[(one["a"], one["b"])].append(one["type"])
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
    given = case.input
    return {"chosen": _aligned(case, given["available"], given["must_include"], given["size"])}


def aligned_allocation_sequence(case: Case) -> Any:
    free = list(range(case.suite["topologies"][case.input["topology"]]["gpus"]))
    chosen = []
    for size in case.input["sizes"]:
        chosen.append(_aligned(case, free, [], size))
        free = [gpu for gpu in free if gpu not in chosen[-1]]
    return {"chosen": chosen}


def validate_request(case: Case) -> None:
    given = case.input
    devices = {
        identity: offered(identity, mode=MODES[given["strategy"]], alone=bool(given.get("failRequestsGreaterThanOne")))
        for identity in given["devices"]
    }
    refusing_containers.check(given.get("resource", "nvidia.com/gpu"), given["requested"], devices)


def _settings(given: dict[str, Any]) -> NodeSettings:
    channels = given.get("imex_channels") or ()
    return NodeSettings(
        device_list_strategies=tuple(given.get("deviceListStrategy", ["envvar"])),
        device_id_strategy=given.get("deviceIDStrategy", "uuid"),
        cdi_annotation_prefix=given.get("cdiAnnotationPrefix", "cdi.k8s.io/"),
        pass_device_specs=given.get("passDeviceSpecs", False),
        dev_root=given.get("nvidiaDevRoot", "/"),
        gdrcopy=given.get("gdrcopyEnabled", False),
        gds=given.get("gdsEnabled", False),
        mofed=given.get("mofedEnabled", False),
        imex_channels=tuple(int(channel) for channel in channels),
    )


def allocate(case: Case) -> Any:
    given = case.input
    resource = given.get("resource", "nvidia.com/gpu")
    nodes = answer.Nodes(
        {uuid: tuple(paths) for uuid, paths in given.get("paths", {}).items()}, tuple(given.get("existing", ()))
    )
    containers = []
    for number, ids in enumerate(given["containers"]):
        devices = [
            offered(
                identity,
                index=given.get("indices", {}).get(sharing.device_of(identity), "0"),
                mode=MODES[given.get("strategy", "none")],
            )
            for identity in ids
        ]
        root = given.get("mpsRoot", "")
        by_mps = any(device.mode is Mode.MPS for device in devices)
        found = answer.answer(
            resource,
            devices,
            _settings(given),
            answer_id=given.get("response_id", "uuid"),
            nodes=nodes,
            mps=answer.MpsPaths(f"{root}/{resource}/pipe", f"{root}/shm") if by_mps else None,
            cdi_vendor=given.get("cdi_vendor", cdi.VENDOR),
        )
        wanted = case.expect["containers"][number] if number < len(case.expect["containers"]) else {}
        containers.append(_fields(found, wanted, by_index=given.get("deviceIDStrategy") == "index"))
    return {"containers": containers}


def _fields(found: answer.ContainerResponse, wanted: dict[str, Any], *, by_index: bool) -> dict[str, Any]:
    """An answer's fields; those that are empty only where the case names them."""
    envs = dict(found.envs)
    visible = "NVIDIA_VISIBLE_DEVICES"
    listed = (wanted.get("envs") or {}).get(visible, "")
    if by_index and sorted(envs.get(visible, "").split(",")) == sorted(listed.split(",")):
        envs[visible] = listed  # the order of several indices does not matter
    fields: dict[str, Any] = {
        "envs": envs,
        "mounts": [
            {"host": mount.host, "container": mount.container, "readOnly": mount.read_only} for mount in found.mounts
        ],
        "devices": [
            {"container": device.container, "host": device.host, "permissions": device.permissions}
            for device in found.devices
        ],
        "annotations": dict(found.annotations),
        "cdi_devices": list(found.cdi_devices),
    }
    return {name: value for name, value in fields.items() if value or name in wanted}


def allocate_cdi(case: Case) -> Any:
    given = case.input
    settings = _settings(given)
    vendor = given.get("cdi_vendor", cdi.VENDOR)
    told = cdi.answer(
        [cdi.name(vendor, "gpu", identity) for identity in given["device_ids"]]
        + [cdi.name(vendor, "imex-channel", str(channel)) for channel in settings.imex_channels]
        + given["additional_cdi_devices"],
        settings.device_list_strategies,
        prefix=settings.cdi_annotation_prefix,
        answer_id=given["response_id"],
    )
    fields = {"annotations": dict(told.annotations), "cdi_devices": list(told.devices)}
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
    "normalise_pci_bus_id": lambda case: pci.kernel_address(case.input),
}
