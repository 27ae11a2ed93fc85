"""A process that denies devices to a container, with the capabilities that it has."""

from __future__ import annotations

from pathlib import Path

from deviceplugin.denial import kernel, pod_denial
from deviceplugin.host import kernel_process


def denies(bpf: str, cgroups: str, uid: str, how: str) -> None:
    if how == "trying":  # the kernel must refuse, not our own check
        kernel_process.missing_capabilities = lambda *_, **__: ()
    try:
        for majors in {10}, {10, 195}:  # the second replaces the first
            made = pod_denial.load_program(Path(bpf), Path(cgroups), proc=Path("/proc"), majors=majors)
            known = kernel.RegisteredMap(made.map_descriptor)
            known.renew()
            known.add(1, 1)
            known.replace([])
            print(len(made.attach([uid])))
    except pod_denial.DenialError as error:
        print(error)
