"""The body of a review, handled by `webhook.server`."""

from __future__ import annotations

import asyncio
import json
import logging

import jsonpatch

from gpushare import codec, ledger
from tests import builders
from tests.fuzz import laws
from webhook import metrics, review
from webhook.admission import Admission
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation

_LOOP = asyncio.new_event_loop()
_METRICS = metrics.Metrics()
_NODE = codec.to_document(builders.node(gpus=2))


def run(data: bytes) -> None:
    logging.disable()
    try:
        request = review.read(data)
    except review.MalformedReviewError as error:
        laws.check_sentence(error)
        return
    pod = json.loads(json.dumps(request["object"]))
    store = MemoryStore([_NODE])
    admission = Admission(store, Reservation(store, policy="fragmentation"), _METRICS)
    answer = _LOOP.run_until_complete(admission.answer(request))
    assert answer.outcome != "error", _why(request)
    assert json.loads(json.dumps(review.respond(request, answer)))["response"]["allowed"] == answer.allowed
    node = store.view("node-a").node  # type: ignore[union-attr]
    assert ledger.violations(node) == []
    if not answer.allowed:
        laws.check_sentence(answer.message)
        assert node.allocations == (), "something is held for a pod that was refused"
    elif answer.patch:
        jsonpatch.apply_patch(pod, list(answer.patch))


def _why(request: review.AdmissionRequest) -> str:
    """Return the exception, which the webhook logs instead of raising."""
    logging.disable(logging.NOTSET)
    store = MemoryStore([_NODE])
    _LOOP.run_until_complete(Admission(store, Reservation(store, policy="fragmentation"), _METRICS).answer(request))
    return "the webhook failed at it; its log, above, has the cause"
