"""Node filters: whether a node can run a pod, with the rules of kube-scheduler (1.36, default plugins).

A pinned pod cannot run on another node, so placement must know in advance what the scheduler would reject. The filters
cover taints, cordons, node selector and required node affinity, host ports, the number of pods, CPU, memory, ephemeral
storage and all other counted resources, required pod affinity and anti-affinity, topology spread, missing claims,
attach limits, the nodes that can reach bound volumes, and for an unbound claim the nodes with a suitable free volume or
where one can be provisioned (`allowedTopologies`). The scheduler binds every pod that passes. It might also bind pods
that do not:

* A node that is not ready is rejected even before the node controller taints it.
* There is no preemption: a node without room is rejected even for a pod of high priority.
* A pod that is pinned to a node counts there before it is bound.
* Topology spread is checked as if the pod were not pinned, because with a pin nearly every spread would pass.
* If a pod (anti-)affinity term selects namespaces by label, the stricter interpretation applies.

Pods may be pinned and then stay pending for reasons that these filters do not cover; the scheduler's own Event explains
them: label selectors of unbound claims, two claims that need the same volume, storage capacity (`CSIStorageCapacity`),
the claims of generic ephemeral volumes, zone labels of in-tree volumes, `ReadWriteOncePod`, CSI drivers missing on a
node (`preventPodSchedulingIfMissing`), dynamic resource allocation, features that a node declares, and scheduler
profiles or extenders that differ from the defaults. Amounts are not checked on a Node without allocatable resources,
which no kubelet has registered yet.
"""

from __future__ import annotations

from gpushare.nodefilters.node_info import NodeSpec, PodInfo
from gpushare.nodefilters.pod_key import PodAffinity, PodKey
from gpushare.nodefilters.scheduler_cache import SchedulerCache

__all__ = ["NodeSpec", "PodAffinity", "PodInfo", "PodKey", "SchedulerCache"]
