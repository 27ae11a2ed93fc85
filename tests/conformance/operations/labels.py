"""Node labels, as NVIDIA's GPU Feature Discovery sets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deviceplugin.report import gpu_labels
from tests.conformance.runner import Case, Facets

Json = Mapping[str, Any]
ENGINES = ("copy", "decoder", "encoder", "jpeg", "ofa")
KINDS = (("mps", "mps"), ("timeSlicing", "time-slicing"))


def sharing(values: Json | None) -> gpu_labels.LabelledSharing:
    """Build a Sharing as from a file; if it has MPS, only MPS counts."""
    for key, kind in KINDS:
        listed = (values or {}).get(key)
        if listed is not None:
            entries = listed.get("resources") or []
            return gpu_labels.LabelledSharing(
                kind,
                tuple(
                    gpu_labels.Replication(
                        entry.get("name", gpu_labels.GPU), int(entry.get("replicas", 1)), _rename(entry, listed)
                    )
                    for entry in entries
                ),
            )
    return gpu_labels.LabelledSharing()


def _rename(entry: Json, listed: Json) -> str:
    by_default = f"{entry.get('name', gpu_labels.GPU)}.shared" if listed.get("renameByDefault") else ""
    return entry.get("rename") or by_default


def capability(text: Any) -> tuple[int, int]:
    major, _, minor = str(text or "0.0").partition(".")
    return int(major), int(minor or 0)


def mig_device(values: Json) -> gpu_labels.LabelledMigDevice:
    return gpu_labels.LabelledMigDevice(
        profile=values["profile_name"],
        memory_mib=values.get("memory_mib", 0),
        gi_slices=values.get("gi", 0),
        ci_slices=values.get("ci", 0),
        multiprocessors=values.get("multiprocessors", 0),
        engines={engine: values.get(f"engines_{engine}", 0) for engine in ENGINES},
    )


def gpu(values: Json) -> gpu_labels.LabelledGpu:
    return gpu_labels.LabelledGpu(
        model=values["name"],
        memory_mib=values.get("memory_mib", 0),
        capability=capability(values.get("compute")),
        mig_enabled=values["kind"] == "mig-enabled",
        mig_devices=tuple(map(mig_device, values.get("migDevices") or [])),
    )


def gpu_resource_labels(case: Case) -> Any:
    values = case.input
    return gpu_labels.whole_gpu_labels(gpu(values["device"]), values["count"], sharing(values.get("sharing")))


def mig_resource_labels(case: Case) -> Any:
    values = case.input
    device = values["device"]
    return gpu_labels.mig_device_labels(
        values.get("resource", gpu_labels.GPU),
        device["parent"],
        mig_device(device),
        values["count"],
        sharing(values.get("sharing")),
    )


def resource_labels(case: Case) -> Any:
    values = case.input
    return gpu_labels.resource_labels(
        list(map(gpu, values["gpus"])), values["migStrategy"], sharing(values.get("sharing"))
    )


def mps_capable_label(case: Case) -> Any:
    config = case.input["config"]
    config = (config or {}).get("sharing", config)
    labels = gpu_labels.mps_capable(sharing(config), case.input.get("gpus_mig_enabled") or ())
    return Facets(labels=labels)


def version_labels(case: Case) -> Any:
    labels = gpu_labels.versions(case.input["driver"], tuple(case.input["cuda"]))
    return Facets(labels, labels=labels, value=labels)


def gfd_oneshot(case: Case) -> Any:
    """Return the labels of a node with one GPU, whose driver may fail to start."""
    if case.input["nvml_init_fails"] and case.input["failOnInitError"]:
        raise ValueError("the driver does not start")
    facts = None if case.input["nvml_init_fails"] else FULL
    return gpu_labels.all_labels(
        facts, strategy=case.input["migStrategy"], sharing=gpu_labels.LabelledSharing(), started=0
    )


FULL = gpu_labels.NodeFacts(
    driver_version="550.54.15",
    cuda_version=(12, 4),
    machine="DGX H100\n",
    gpus=(gpu_labels.LabelledGpu("NVIDIA H100 80GB HBM3", 81559, (9, 0)),),
    pci_classes=(0x030200,),
    mig_capable=(True,),
)


def gfd_label_names(case: Case) -> Any:
    """Return the label names; upstream lists those of vGPUs separately and writes them next to all others."""
    of_vgpus = bool(case.input.get("vgpu"))
    strategy = case.input.get("migStrategy", "none")
    cut = gpu_labels.LabelledMigDevice("1g.10gb", 9984, 1, 1, 16, dict.fromkeys(ENGINES, 1))
    gpus = (
        FULL.gpus
        if strategy == "none"
        else (gpu_labels.LabelledGpu("NVIDIA H100 80GB HBM3", 81559, (9, 0), mig_enabled=True, mig_devices=(cut,)),)
    )
    facts = gpu_labels.NodeFacts(FULL.driver_version, FULL.cuda_version, FULL.machine, gpus, (0x030200,), (True,))
    made = gpu_labels.all_labels(facts, strategy=strategy, sharing=gpu_labels.LabelledSharing(), started=1_700_000_000)
    return Facets(allowed=Allowed(key for key in made if (key == gpu_labels.VGPU) is of_vgpus))


class Allowed:
    """A result that is compared with a set of allowed ones."""

    def __init__(self, made: Any) -> None:
        self.made = frozenset(made)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and self.made <= set(other)

    def __hash__(self) -> int:
        return hash(self.made)

    def __repr__(self) -> str:
        return repr(sorted(self.made))


OPERATIONS: dict[str, Callable[[Case], Any]] = {
    "gpu_resource_labels": gpu_resource_labels,
    "mig_resource_labels": mig_resource_labels,
    "resource_labels": resource_labels,
    "sanitise_label_value": lambda case: gpu_labels.sanitised(case.input),
    "mig_capable_label": lambda case: gpu_labels.mig_capable(case.input),
    "mps_capable_label": mps_capable_label,
    "gpu_mode_label": lambda case: gpu_labels.mode([int(text, 16) for text in case.input["pci_classes"]]),
    "arch_family": lambda case: gpu_labels.family(capability(case.input)),
    "version_labels": version_labels,
    "gfd_oneshot": gfd_oneshot,
    "gfd_label_names": gfd_label_names,
}

OUTSIDE: dict[str, str] = {
    "gfd_loop": "labels are written by the agent's own loop: tests/deviceplugin tests that it follows changes and ends well",
    "nodefeature_owner_refs": "labels are written to the Node itself: no NodeFeature object is made that would need owners",
    "mig_manager_label": "no other component is paused: a GPU is partitioned once it is idle",
}
