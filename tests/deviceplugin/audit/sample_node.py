"""A node for the audit: two GPUs, a pod with a share of the first one, and a pod without a share."""

from __future__ import annotations

from typing import Any

from deviceplugin.arbiter import tenant
from deviceplugin.arbiter.pages import LimitsRecord
from deviceplugin.audit.node_audit import SeenMember
from deviceplugin.host.kernel_process import Container
from gpushare import contract
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import Gpu, GpuNode

GIB = 1 << 30
A, B = "GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b"
TRAINER = Container("uid-trainer", "id-main")
SIDE = Container("uid-trainer", "id-side")
OTHER = Container("uid-other", "id-other")


def manifest(name: str, identity: str, **containers: str) -> dict[str, Any]:
    statuses = [{"name": container, "containerID": f"containerd://{at}"} for container, at in containers.items()]
    annotations = {contract.ALLOCATION: identity} if identity else {}
    metadata = {"namespace": "ml", "name": name, "uid": f"uid-{name}", "annotations": annotations}
    return {"metadata": metadata, "status": {"containerStatuses": statuses}}


PODS = (manifest("trainer", "of-trainer", main="id-main", side="id-side"), manifest("other", "", other="id-other"))
GIVEN = GivenShare(("main",), (A,), 50, 80, 8 * GIB)
NODE = GpuNode("node-a", allocations=(Allocation("of-trainer", PodRef("ml", "trainer", "uid-trainer"), (GIVEN,)),))
GRANT = tenant.Grant(A, 8 * GIB, 50, 80)
TENANT = tenant.Tenant("uid-trainer", "ml", "trainer", ("main",), 0, (GRANT,), allocation="of-trainer")
RECORD = LimitsRecord(b"", 8 * GIB, 50, 80, 0, 0)
MEMBER = SeenMember((7, 70), (GIB,), with_library=True)
GPUS = (Gpu(A, 0, "A100", 40 * GIB), Gpu(B, 1, "A100", 40 * GIB))
