"""The labels of a node whose GPUs are partitioned for one case after the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deviceplugin.hardware import inventory, nvml, nvml_mig
from deviceplugin.report import gpu_labels, node_writers


def cut(mig: nvml_mig.MigDriver, uuid: str, profiles: Sequence[str]) -> None:
    mode = mig.mig_mode(uuid)
    if mode is None or (not profiles and not mode.current):
        return
    for instance in mig.mig_instances(uuid) if mode.current else ():
        for part in instance.parts:
            mig.destroy_compute_instance(uuid, instance.id, part.id)
        mig.destroy_gpu_instance(uuid, instance.id)
    assert mig.set_mig_mode(uuid, enabled=bool(profiles)) == ""
    geometry = mig.mig_geometry(uuid)
    assert geometry is not None
    kinds = {str(kind.profile): kind for kind in geometry.kinds}
    for name in profiles:
        made = mig.create_gpu_instance(uuid, kinds[name], None)
        mig.create_compute_instance(uuid, made, kinds[name].gpu_slices)


def labels(cases: list[dict[str, Any]], sys_root: str) -> None:
    driver = nvml.Nvml()
    mig = nvml_mig.MigDriver(driver)
    uuids = [gpu.uuid for gpu in driver.snapshot().gpus]
    made = []
    for case in cases:
        for uuid, profiles in zip(uuids, case["cut"] or [[] for _ in uuids], strict=True):
            cut(mig, uuid, profiles)
        entries = tuple(gpu_labels.Replication(*entry) for entry in case["shared"])
        gpus = driver.snapshot().gpus
        facts = node_writers.read_facts(
            driver, gpus, inventory.discover(driver, gpus, {}), machine_type_file="/nowhere", sys_root=Path(sys_root)
        )
        sharing = gpu_labels.LabelledSharing("time-slicing" if entries else "none", entries)
        made.append(gpu_labels.all_labels(facts, strategy=case["strategy"], sharing=sharing))
    print(json.dumps(made))
