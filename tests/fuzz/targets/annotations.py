"""A pod's annotations as JSON, parsed to its request."""

from __future__ import annotations

import json

from gpushare import caps, errors, request
from tests import builders
from tests.fuzz import laws


def run(data: bytes) -> None:
    try:
        annotations = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(annotations, dict):
        return
    pod = builders.pod(containers=("main", "other"))
    pod["metadata"]["annotations"] = annotations
    try:
        pod_request = request.parse(pod)
    except errors.RequestError as error:
        laws.check_sentence(error)
        return
    for demand in pod_request.demands:
        assert 0 <= demand.share.request_percent <= demand.share.limit_percent <= 100
        assert 1 <= demand.gpus <= caps.GPUS
        assert set(demand.containers) <= {"main", "other"}
        assert (demand.share.memory.bytes or 0) >= 0
        assert 0 <= (demand.share.memory.percent or 0) <= 100
        laws.check_sentence(demand)
