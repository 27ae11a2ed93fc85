"""Scheduler scores: where kube-scheduler would most likely put a pod without a share, by its default profile.

NodeResourcesFit by LeastAllocated, NodeResourcesBalancedAllocation, and TaintToleration with its weight of 3
(pkg/scheduler/apis/config/v1/default_plugins.go). Left out is what a pod may prefer besides: preferred affinity, soft
topology spread, nodes that have its image. So this is likely, and not sure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpushare import pod
from gpushare.nodefilters import SchedulerCache, pod_requests, share_resources, taints
from gpushare.nodefilters.node_spec import NodeSpec
from gpushare.nodefilters.pod_key import PodKey

_MAX: Final = 100
_TAINT_WEIGHT: Final = 3
_COUNTED: Final = (pod_requests.CPU, pod_requests.MEMORY)


def best(cache: SchedulerCache, manifest: pod.PodJson, *, left: str = "") -> str:
    """The node with the highest score of those that can take the pod; empty if there is none.

    Of equals the one that was `left`, or else the first by name.
    """
    shape, relations = share_resources.key_and_affinity(manifest)
    judge = cache.node_filter(shape, relations)
    fitting = [machine for machine in cache.node_specs() if judge.fits(machine.name)]
    tolerated = taints.Tolerated(shape.tolerations)
    disliked = {machine.name: _disliked(machine, tolerated) for machine in fitting}
    most = max(disliked.values(), default=0)

    def score(machine: NodeSpec) -> int:
        untainted = _MAX - _MAX * disliked[machine.name] // most if most else _MAX
        return resources(machine, cache.info(machine.name).amounts, shape) + _TAINT_WEIGHT * untainted

    return min(((-score(machine), machine.name != left, machine.name) for machine in fitting), default=(0, True, ""))[2]


def resources(machine: NodeSpec, used: Mapping[str, int], shape: PodKey) -> int:
    """What LeastAllocated and BalancedAllocation give a node, 0 to 200."""
    asked = dict(shape.amounts)
    has = machine.allocatable or {}
    parts = [
        min(1.0, (used.get(name, 0) + asked.get(name, 0)) / has[name]) for name in _COUNTED if has.get(name, 0) > 0
    ]
    if not parts:
        return 0
    least_allocated = sum(int(_MAX * (1 - part)) for part in parts) // len(parts)
    balanced = int(_MAX * (1 - (max(parts) - min(parts)) / 2))
    return least_allocated + balanced


def _disliked(machine: NodeSpec, tolerated: taints.Tolerated) -> int:
    """How many of the node's taints that only discourage the pod does not tolerate."""
    return sum(tolerated.first_not((taint,)) is not None for taint in machine.discouraged_by)
