"""The kubelet's calls to a resource's plugin, in protobuf. The first byte selects call and resource."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from deviceplugin.kubelet import plugin_service, share_answers
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from deviceplugin.kubelet_api import podresources_v1_pb2 as resources
from deviceplugin.state import advertisement, pod_resources
from deviceplugin.state.node_state import Observable
from tests.deviceplugin.kubelet import test_device_answers as devices
from tests.fuzz import laws

_LOOP = asyncio.new_event_loop()
_MOUNTS = share_answers.Mounts(Path("/host/lib.so"), Path("/host/ld.so.preload"), Path("/host/arbiter"))
_RESOURCE = devices.GPU
_OFFERS = (devices.whole("GPU-a", "GPU-b", "GPU-c"), devices.shared("GPU-a", "GPU-b"))
_REQUESTS = (messages.AllocateRequest, messages.PreferredAllocationRequest, messages.PreStartContainerRequest)
_CALLS = ("Allocate", "GetPreferredAllocation", "PreStartContainer")


class AbortedError(Exception):
    """Raised where grpc would abort the call."""


class Context:
    """The context of a call."""

    async def abort(self, _: Any, details: str) -> None:
        laws.check_sentence(details)
        raise AbortedError


def run(data: bytes) -> None:
    logging.disable()
    chosen, body = data[0] if data else 0, data[1:]
    if chosen % 10 == 9:
        _pod_resources(body)
        return
    try:
        request = _REQUESTS[chosen % 3].FromString(body)
    except DecodeError:
        return
    given_ids: list[str] = []
    in_force = [*(devices.InForce(offer) for offer in _OFFERS), None][chosen // 3 % 3]
    offered = _OFFERS[0] if in_force is None else in_force.offered
    adverts = {_RESOURCE: tuple(advertisement.AdvertisedDevice(device.id, True, None) for device in offered[_RESOURCE])}
    answers = share_answers.ShareAnswers(_MOUNTS) if in_force is None else devices.answers(in_force, given_ids)
    plugin = plugin_service.DevicePlugin(plugin_service.ServedResource(_RESOURCE, answers), Observable(adverts))
    try:
        answer = _LOOP.run_until_complete(getattr(plugin, _CALLS[chosen % 3])(request, Context()))
    except AbortedError:
        return
    assert type(answer).FromString(answer.SerializeToString()) == answer
    if isinstance(request, messages.PreferredAllocationRequest):
        for asked, response in zip(request.container_requests, answer.container_responses, strict=True):
            assert len(response.deviceIDs) <= max(asked.allocation_size, 0)
            assert set(response.deviceIDs) <= {*asked.available_deviceIDs, *asked.must_include_deviceIDs}


def _pod_resources(body: bytes) -> None:
    try:
        answer = resources.ListPodResourcesResponse.FromString(body)
    except DecodeError:
        return
    for entry in pod_resources.from_answer(answer):
        hash(entry)
