"""Which pod and container a process belongs to, from the text of its /proc/PID/cgroup. Pure.

The kubelet and the container runtime name cgroups in a few ways (v1 and v2, cgroupfs and systemd drivers), all with the
pod's UID and then the container's id:

    /kubepods/burstable/podUID/ID
    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope
    /kubepods-burstable-podUID.slice:cri-containerd:ID
    /kubepods.slice/kubepods-podUID.slice/crio-ID.scope/container

Whatever is outside comes in front: the container that a node of kind is, the slices of --cgroup-root. An agent in a
cgroup namespace of its own, as containers of cgroup v2 have one, sees `..` in front. What a container makes below its
own cgroup is its own invention: only the outermost pod counts. All hierarchies of cgroup v1 must agree; one that knows
no pod is no contradiction.

A cgroup's name may hold every character but `/` and a line feed. A process below `kubepods` that fits none of these
forms is refused with `NOT_UNDERSTOOD`, so that it is never mistaken for a process of the host.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from gpushare.refusal import Refusal

_UID: Final = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})"
_ID: Final = r"([0-9a-f]{64})"
# In front of `kubepods` are the slices of a kubelet's --cgroup-root, as in kind: `kubelet-kubepods-burstable-pod…`.
_SLICES: Final = r"(?:(?:[a-zA-Z0-9_.]+-)*kubepods(?:-[a-z]+)?-)?"
_POD: Final = re.compile(rf"{_SLICES}pod{_UID}(?:\.slice)?")
_CONTAINER: Final = re.compile(rf"(?:(?:cri-containerd|crio|docker|libpod)-)?{_ID}(?:\.scope)?")
_BOTH: Final = re.compile(rf"{_SLICES}pod{_UID}\.slice:[a-z-]+:{_ID}")
# What the kubelet makes for pods, their parents included; as seen from a namespace, a pod's own name comes first.
_POD_PARENT: Final = re.compile(r"(?:[a-zA-Z0-9_.]+-)*kubepods(?:[-.].*)?|pod[0-9a-f_-]{32,36}(?:\..*)?", re.DOTALL)

IN_NO_POD: Final = Refusal("this process is in no container of a pod")
IN_SEVERAL: Final = Refusal("this process is in the cgroups of several containers at once")
NOT_UNDERSTOOD: Final = Refusal("this process is in a pod's cgroup, but in no container that is known by its cgroup")


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod, by the names that kubelet and runtime gave them."""

    pod_uid: str
    container_id: str


def parse(text: str) -> Container | Refusal:
    """The container whose process has these cgroups."""
    # Not `splitlines`, which ends a line at a vertical tab and at eight other characters that a cgroup's name may hold.
    paths = [line.split(":", 2)[-1] for line in text.split("\n")]
    containers = {container for path in paths if (container := _from_path(path)) is not None}
    if len(containers) > 1:
        return IN_SEVERAL
    if containers:
        return containers.pop()
    below_pods = any(_POD_PARENT.fullmatch(component) for path in paths for component in path.split("/"))
    return NOT_UNDERSTOOD if below_pods else IN_NO_POD


def pod_of(component: str) -> str | None:
    """The UID of the pod whose cgroup has this name; None if it is not a pod's."""
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
