"""Finds the pod and container of a process in the text of its /proc/PID/cgroup. Pure.

Kubelet and container runtime name cgroups in a few ways (v1 and v2, cgroupfs and systemd drivers), always with the
pod's UID and then the container's id:

    /kubepods/burstable/podUID/ID
    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope
    /kubepods-burstable-podUID.slice:cri-containerd:ID
    /kubepods.slice/kubepods-podUID.slice/crio-ID.scope/container

Outer cgroups come in front: the container that a kind node is, or the slices of --cgroup-root. An agent in its own
cgroup namespace, as containers of cgroup v2 have one, sees `..` in front. A container can create cgroups with any name
below its own, so only the outermost pod counts. All hierarchies of cgroup v1 must agree; those without a pod do not
matter.

Cgroup names may contain every character except `/` and line feed. A process below `kubepods` that matches none of these
forms is refused with `NOT_UNDERSTOOD`, so that it is never mistaken for a process of the host.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from gpushare.refusal import Refusal

_UID: Final = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})"
_ID: Final = r"([0-9a-f]{64})"
# The slices of a kubelet's --cgroup-root precede `kubepods`, as in kind: `kubelet-kubepods-burstable-pod…`.
_SLICES: Final = r"(?:(?:[a-zA-Z0-9_.]+-)*kubepods(?:-[a-z]+)?-)?"
_POD: Final = re.compile(rf"{_SLICES}pod{_UID}(?:\.slice)?")
_CONTAINER: Final = re.compile(rf"(?:(?:cri-containerd|crio|docker|libpod)-)?{_ID}(?:\.scope)?")
_BOTH: Final = re.compile(rf"{_SLICES}pod{_UID}\.slice:[a-z-]+:{_ID}")
# The kubelet's cgroups for pods and their parents. In a cgroup namespace, the pod's own name may come first.
_POD_PARENT: Final = re.compile(r"(?:[a-zA-Z0-9_.]+-)*kubepods(?:[-.].*)?|pod[0-9a-f_-]{32,36}(?:\..*)?", re.DOTALL)

IN_NO_POD: Final = Refusal("this process is not in a container of a pod")
IN_SEVERAL: Final = Refusal("this process is in the cgroups of several containers at once")
NOT_UNDERSTOOD: Final = Refusal(
    "this process is in a pod's cgroup, but the agent does not recognize its container's cgroup"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod, by pod UID and container id."""

    pod_uid: str
    container_id: str


def parse(text: str) -> Container | Refusal:
    """Return the container of a process with these cgroups, or a refusal."""
    # `splitlines` would also split at vertical tabs and eight other characters that cgroup names may contain.
    paths = [line.split(":", 2)[-1] for line in text.split("\n")]
    containers = {container for path in paths if (container := _from_path(path)) is not None}
    if len(containers) > 1:
        return IN_SEVERAL
    if containers:
        return containers.pop()
    below_pods = any(_POD_PARENT.fullmatch(component) for path in paths for component in path.split("/"))
    return NOT_UNDERSTOOD if below_pods else IN_NO_POD


def pod_of(component: str) -> str | None:
    """Return the UID of the pod whose cgroup has this name, or None."""
    pod = _POD.fullmatch(component)
    return pod[1].replace("_", "-") if pod else None


def _from_path(path: str) -> Container | None:
    components = path.split("/")
    for position, component in enumerate(components):
        both = _BOTH.fullmatch(component)
        if both:
            return Container(both[1].replace("_", "-"), both[2])
        pod = pod_of(component)
        if pod is not None:
            below = components[position + 1] if position + 1 < len(components) else ""
            container = _CONTAINER.fullmatch(below)
            return Container(pod, container[1]) if container else None
    return None
