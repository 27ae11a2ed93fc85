"""A pod as JSON, sent to the webhook of each syntax of other sharers."""

from __future__ import annotations

import asyncio
import json
import logging

import jsonpatch

from gpushare.syntaxes.translation import SYNTAXES
from tests.fuzz import laws
from webhook import metrics, review
from webhook.admission import Admission
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation

_LOOP = asyncio.new_event_loop()
_STORE = MemoryStore([])
_ADMISSION = Admission(_STORE, Reservation(_STORE, policy="fragmentation"), metrics.Metrics())


def run(data: bytes) -> None:
    logging.disable()
    try:
        pod = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(pod, dict):
        return
    for name in SYNTAXES:
        answer = _answer(pod, name)
        assert answer.outcome != "error", f"the webhook failed on {name}"
        if not answer.allowed:
            laws.check_sentence(answer.message)
        elif answer.patch:
            after = jsonpatch.apply_patch(pod, list(answer.patch))
            assert _answer(after, name).outcome == "ignored", "a translated pod is translated again"
        for warning in answer.warnings:
            laws.check_sentence(review.cut(warning))


def _answer(pod: object, name: str) -> review.ReviewResponse:
    request = {"uid": "u", "operation": "CREATE", "object": json.loads(json.dumps(pod)), "syntax": name}
    return _LOOP.run_until_complete(_ADMISSION.answer(request))  # type: ignore[arg-type]
