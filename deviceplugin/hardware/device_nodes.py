"""The device nodes of GPUs on this host, for containers that are given them one by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.allocation import answer

_ROOTS: Final = (Path("/"),)


def nodes(
    minors: Mapping[str, int],
    *,
    roots: Sequence[Path] = _ROOTS,
    parts: Collection[tuple[str, str, int, int]] = (),
) -> answer.Nodes:
    """The nodes that there are.

    minors: of each GPU by UUID the number of its node; roots: where /dev and /proc are, this container's own and the
    host's, as an agent that needs no CUDA has not all of its nodes; parts: MIG devices, as UUID, UUID of the GPU, and
    the numbers of the two instances.
    """
    control = tuple(path for path in answer.CONTROL_NODES if any((root / path.lstrip("/")).exists() for root in roots))
    of_device: dict[str, tuple[str, ...]] = {uuid: (f"/dev/nvidia{minor}",) for uuid, minor in minors.items()}
    capabilities: dict[str, int] = {}
    for root in roots if parts else ():
        capabilities |= _capabilities(root / "proc/driver/nvidia-caps/mig-minors")
    for uuid, gpu, instance, part in parts:
        if gpu not in minors:
            continue
        names = (f"gpu{minors[gpu]}/gi{instance}/access", f"gpu{minors[gpu]}/gi{instance}/ci{part}/access")
        caps = tuple(f"/dev/nvidia-caps/nvidia-cap{capabilities[name]}" for name in names if name in capabilities)
        of_device[uuid] = (f"/dev/nvidia{minors[gpu]}", *caps)
    return answer.Nodes(of_device, control)


def _capabilities(path: Path) -> dict[str, int]:
    """The number of each capability's node, from the driver's list of lines such as `gpu0/gi1/access 21`."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: int(number) for name, _, number in (line.partition(" ") for line in lines) if number.isdigit()}
