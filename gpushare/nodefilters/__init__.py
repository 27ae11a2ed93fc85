"""Node filters: whether a node can take a pod at all, as kube-scheduler (1.36, default plugins) would judge it.

A pod that was pinned cannot go elsewhere, so what the scheduler would refuse must be known before. Judged are taints,
cordon, node selector and required node affinity, host ports, the number of pods, CPU, memory, ephemeral storage and
every other counted resource, required pod affinity and anti-affinity, topology spread, that the pod's claims exist, how
many volumes a node can attach, from which nodes the bound volumes of the claims can be reached, and for an unbound
claim where there is a free volume or one can be made (`allowedTopologies`). What is said to fit, the scheduler binds;
it might bind more than that:

* A node that is not ready is refused even in the moment before its taint is written.
* Nobody is preempted: a node is refused to a pod of high priority for which others would have to make room.
* A pod that is pinned to a node and not bound yet counts as being there.
* Spread is judged as if the pod were not pinned, because a pin would let nearly every spread pass.
* Where a pod (anti-)affinity chooses namespaces by their labels, the answer that rules out more is taken.

Not judged, so that such a pod may be pinned and then wait, for a reason that the scheduler's own Event tells: label
selectors of unbound claims, two of them that need one volume, how much a driver has left (`CSIStorageCapacity`), the
claims of generic ephemeral volumes, the zone labels of old in-tree volumes, `ReadWriteOncePod`, CSI drivers that a node
lacks (`preventPodSchedulingIfMissing`), dynamic resource allocation, features that a node declares, and profiles or
extenders that differ from the defaults. The amounts of a Node that declares nothing allocatable, because no kubelet has
described it, are not judged either.
"""

from __future__ import annotations

from gpushare.nodefilters.node_info import PodInfo
from gpushare.nodefilters.node_spec import NodeSpec
from gpushare.nodefilters.pod_affinity import PodAffinity
from gpushare.nodefilters.pod_key import PodKey
from gpushare.nodefilters.scheduler_cache import SchedulerCache

__all__ = ["NodeSpec", "PodAffinity", "PodInfo", "PodKey", "SchedulerCache"]
