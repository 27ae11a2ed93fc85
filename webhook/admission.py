"""Admission: one pod that asks for a share → denied, placed or gated."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpushare import caps, pod
from gpushare.allocation import Allocation, PodRef
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from webhook import metrics, review
from webhook.pods import difference, gate_reason, mutation, pod_structure, validation
from webhook.store import ledger_store, reinvocation
from webhook.store.reservation import Reservation, Waited

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Admission:
    """Answers AdmissionReviews of pods: denied with a sentence, or admitted with a patch, placed or gated."""

    store: ledger_store.LiveLedger
    reservation: Reservation
    metrics: metrics.Metrics
    _: dataclasses.KW_ONLY
    clock: Callable[[], float] = time.perf_counter

    async def answer(self, request: review.AdmissionRequest) -> review.ReviewResponse:
        """The answer; never raises, because an answer that does not come reaches the user without a reason."""
        started, waited = self.clock(), Waited()
        holder = _holder(request)
        try:
            answer = await self._judge(request, holder, waited)
        except Exception:
            answer = _failed(request, holder)
        seconds = self.clock() - started
        self.metrics.reviewed(answer.outcome, seconds)
        logger.info(
            "Answered a review",
            extra={
                "pod": _shown(holder),
                "outcome": answer.outcome,
                "decision": answer.audit.get("decision", ""),
                "seconds": round(seconds, 4),
                "ledger_seconds": round(waited.seconds, 4),
            },
        )
        return answer

    async def _judge(self, asked: review.AdmissionRequest, holder: PodRef, waited: Waited) -> review.ReviewResponse:
        manifest = asked["object"]
        if asked["operation"] != "CREATE" or asked.get("subResource"):
            return review.allow("ignored")
        too_much = caps.exceeded(manifest)
        if too_much is not None:
            return review.deny(422, too_much)
        if not pod.asks_for_share(manifest):
            return review.allow("ignored")
        request, missing, is_dry = validation.read(manifest), self.store.missing(), bool(asked.get("dryRun"))
        if isinstance(request, Request) and missing is None:
            uncounted = self.store.uncounted(holder.namespace, manifest, request)
            request = validation.Denial(uncounted, 403) if uncounted else request
        try:
            own = None if missing or is_dry else await reinvocation.find(manifest, holder, self.store)
        except ledger_store.UnreachableError as error:
            sentence = f"the ledger of GPUs could not be read ({error}): try again in a moment"
            return review.deny(503, sentence, outcome="unready")
        if isinstance(request, validation.Denial):
            if own is not None:
                await self.reservation.release(own[0].name, own[1].id)
            return review.deny(request.code, request.sentence)
        if missing is not None:
            return review.deny(503, f"gpushare is starting: {missing}; try again in a moment", outcome="unready")
        if is_dry:
            return self._plan(manifest, request, holder)
        warnings: tuple[str, ...] = ()
        if own is None:
            warnings = validation.warnings(manifest, request)
            wanted = mutation.as_asked(manifest, request)
        else:
            node, entry = own
            hostname = self.store.chooser.hostname(node.name)
            wanted = mutation.as_asked(manifest, request, pinned_to=hostname)
            if self._holds_still(wanted, request, node, entry):
                kept = mutation.Placed(entry.id, node.name, hostname, entry.shares)
                return _answer(manifest, wanted, request, kept, (), outcome="kept")
            await self.reservation.release(node.name, entry.id)
        held_back = gate_reason.reason(wanted, request) or self.store.premature(holder.namespace, wanted, request)
        outcome = held_back or await self.reservation.reserve(wanted, request, holder, waited)
        return _answer(manifest, wanted, request, outcome, warnings)

    def _plan(self, manifest: PodJson, request: Request, holder: PodRef) -> review.ReviewResponse:
        """The answer of a dry run, which writes nothing.

        Without warnings: when it comes again, no reservation tells our own annotations from forged ones.
        """
        wanted = mutation.as_asked(manifest, request)
        held_back = gate_reason.reason(wanted, request) or self.store.premature(holder.namespace, wanted, request)
        outcome = held_back or self.reservation.plan(wanted, request)
        return _answer(manifest, wanted, request, outcome, (), outcome="planned")

    def _holds_still(self, wanted: PodJson, request: Request, node: GpuNode, entry: Allocation) -> bool:
        """Whether the pod, which another webhook has changed, may have what it was given, and can run there."""
        if gate_reason.reason(wanted, request) or not reinvocation.is_as_asked(entry, request, node):
            return False
        self.store.expect(wanted, node.name, entry.id)  # as it is now, so that it is not in its own way
        return self.store.chooser.unfit(wanted)(node.name) is None


def _failed(request: review.AdmissionRequest, holder: PodRef) -> review.ReviewResponse:
    """The answer after an exception: it is the pod's fault, or ours."""
    wrong = pod_structure.wrong(request["object"])
    if wrong is not None:
        return review.deny(400, wrong)
    logger.exception("Failed to judge a pod", extra={"pod": _shown(holder), "review": request["uid"]})
    return review.deny(500, "gpushare failed to judge this pod; its webhook's log has the cause", outcome="error")


def _answer(
    manifest: Any,
    wanted: PodJson,
    request: Request,
    outcome_of: mutation.Placed | Refusal,
    warnings: tuple[str, ...],
    *,
    outcome: str = "",
) -> review.ReviewResponse:
    patch = difference.patch(manifest, mutation.rewrite(wanted, request, outcome_of))
    if isinstance(outcome_of, Refusal):
        # Of this cause, the placer places the pod within a second once it is stored: nothing to warn about.
        waits = () if outcome_of.cause is Cause.UNCLAIMED else (f"waits for a GPU: {outcome_of.reason}",)
        return review.ReviewResponse(
            outcome or "gated",
            patch=patch,
            warnings=(*warnings, *waits),
            audit={"decision": f"gated: {outcome_of.reason}"},
        )
    uuids = ",".join(uuid for share in outcome_of.shares for uuid in share.gpu_uuids)
    decision = f"placed: {outcome_of.node} {uuids} as {outcome_of.allocation_id}"
    return review.ReviewResponse(outcome or "placed", patch=patch, warnings=warnings, audit={"decision": decision})


def _shown(holder: PodRef) -> dict[str, str]:
    return {"namespace": holder.namespace, "name": holder.name}


def _holder(request: review.AdmissionRequest) -> PodRef:
    metadata = request["object"].get("metadata")
    known: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    namespace = str(request.get("namespace") or known.get("namespace") or "default")
    return PodRef(namespace, str(known.get("name") or ""))
