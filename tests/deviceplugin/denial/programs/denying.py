"""A process that denies devices to a container, with the capabilities that it has."""

from __future__ import annotations

from pathlib import Path

from deviceplugin.denial import denial_program, registered
from deviceplugin.host import kernel_process


def denies(bpf: str, cgroups: str, uid: str, how: str) -> None:
    if how == "trying":  # the kernel must refuse, not our own check
        kernel_process.missing_capabilities = lambda *_, **__: ()
    try:
        for majors in {10}, {10, 195}:  # the second replaces the first
            made = denial_program.load(Path(bpf), Path(cgroups), proc=Path("/proc"), majors=majors)
            known = registered.RegisteredMap(made.map_descriptor)
            known.renew()
            known.add(1, 1)
            known.replace([])
            print(len(made.attach([uid])))
    except denial_program.DenialError as error:
        print(error)
