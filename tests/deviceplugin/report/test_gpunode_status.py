"""A recreated GPUNode gets no GPUs before it says what is lent, however long the arbiter takes to answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deviceplugin.report import gpunode_status
from deviceplugin.state.gpunode_copy import GpuNodeCopy
from deviceplugin.state.node_state import NodeState
from gpushare import codec
from gpushare.cluster import api_client
from gpushare.gpunode import Gpu, GpuNode, Resize

LENT = Resize("a1", 0, 68 << 30, 68 << 30)


class Api(api_client.ApiClient):
    """Stores the status of one GPUNode."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    async def patch(self, path: str, body: Any, content_type: str = "") -> dict[str, Any]:
        del path, content_type
        self.written.append(body)
        return {"metadata": {"name": "node-a", "resourceVersion": "2"}, "status": body["status"]}


async def test_a_new_gpunode_has_no_gpus_before_its_resizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpunode_status, "RESIZES_SECONDS", 0.01)
    api, wake, may_answer = Api(), asyncio.Event(), asyncio.Event()

    async def resizes(_: GpuNode) -> tuple[Resize, ...]:
        await may_answer.wait()
        may_answer.clear()  # the next answer is late again
        return (LENT,)

    state = NodeState()
    state.gpus.publish((Gpu("GPU-1", 0, "A100", 80 << 30),))
    copy = GpuNodeCopy(api, node_name="node-a", wake=wake)
    copy.document = {"metadata": {"name": "node-a", "resourceVersion": "1"}}
    status = gpunode_status.GpuNodeStatus(api, copy, state, wake=wake, resizes=resizes)
    await status.step()
    assert api.written == []
    may_answer.set()
    await wake.wait()
    await status.step()
    (body,) = api.written
    stored = codec.read(copy.document)
    assert (stored.resizes, [gpu.memory_bytes for gpu in stored.gpus]) == ((LENT,), [80 << 30])
    assert body["metadata"] == {"resourceVersion": "1"}, "the arbiter answered for this version"
