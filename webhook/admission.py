"""Admission: decides whether a pod that requests a share is denied, placed or gated.

The API server calls again when a webhook after ours has changed the pod. Then the pod names its reservation, and keeps
it if it still fits. A user may copy the ID of another allocation, so it has to be unconfirmed (no pod with it is
stored), of this namespace and pod name, and exactly what this pod requests. The second call may reach another replica
before its watch shows the reservation, so one that the cache lacks is read from the API server. Otherwise the pod would
be placed again with our own node selector as a constraint, and could be gated for a full node while others are free.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gpushare import caps, contract, errors, isolation, ledger, mig_shares, pod
from gpushare.allocation import Allocation, GivenShare, Isolation, PodRef
from gpushare.gpunode import GpuNode
from gpushare.placement import filters
from gpushare.pod import PodJson
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from gpushare.share_range import UNBOUNDED
from gpushare.syntaxes import translation
from webhook import metrics, review
from webhook.pods import mutation, pod_manifest, validation
from webhook.pods.pod_manifest import PodSpecView
from webhook.store import ledger_store
from webhook.store.reservation import LedgerWait, Reservation

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Admission:
    """Answers AdmissionReviews of pods."""

    store: ledger_store.LiveLedger
    reservation: Reservation
    metrics: metrics.Metrics
    _: dataclasses.KW_ONLY
    clock: Callable[[], float] = time.perf_counter

    async def answer(self, request: review.AdmissionRequest) -> review.ReviewResponse:
        """Answer a review. Never raises: without an answer, the user would see a failure without a reason."""
        started, waited = self.clock(), LedgerWait()
        metadata = request["object"].get("metadata")
        known: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
        namespace = str(request.get("namespace") or known.get("namespace") or "default")
        holder = PodRef(namespace, str(known.get("name") or ""))
        shown = {"namespace": holder.namespace, "name": holder.name}
        try:
            answer = await self._review(request, holder, waited)
        except Exception:  # caused by an invalid pod, or by a defect in gpushare
            invalid = pod_manifest.why_invalid(request["object"])
            if invalid is not None:
                answer = review.deny(400, invalid)
            else:
                logger.exception("Failed to review a pod", extra={"pod": shown, "review": request["uid"]})
                sentence = "gpushare failed on this pod; see the webhook's log for the cause"
                answer = review.deny(500, sentence, outcome="error")
        seconds = self.clock() - started
        self.metrics.reviewed(answer.outcome, seconds)
        logger.info(
            "Answered a review",
            extra={
                "pod": shown,
                "outcome": answer.outcome,
                "decision": answer.audit.get("decision", ""),
                "seconds": round(seconds, 4),
                "ledger_seconds": round(waited.seconds, 4),
            },
        )
        return answer

    async def _review(
        self, admission: review.AdmissionRequest, holder: PodRef, waited: LedgerWait
    ) -> review.ReviewResponse:
        manifest = admission["object"]
        if admission["operation"] != "CREATE" or admission.get("subResource"):
            return review.allow("ignored")
        exceeded = caps.exceeded(manifest)
        if exceeded is not None:
            return review.deny(422, exceeded)
        if syntax := admission.get("syntax"):
            return self._translated(manifest, syntax, holder.namespace)
        if not pod.asks_for_share(manifest):
            return review.allow("ignored")
        missing, is_dry, what = self.store.missing(), bool(admission.get("dryRun")), "annotations of the namespace"
        try:
            allowed = UNBOUNDED if missing else await self.store.share_range(holder.namespace)
            view = PodSpecView.read(allowed.with_defaults(manifest))
            what = "ledger of GPUs"
            own = None if missing or is_dry else await find_reservation(view, holder, self.store)
        except ledger_store.UnreachableError as error:
            sentence = f"the {what} could not be read ({error}): try again in a moment"
            return review.deny(503, sentence, outcome="unready")
        request = validation.read(view)
        if isinstance(request, Request) and missing is None:
            refused = allowed.excess(request) or self.store.uncounted(holder.namespace, view.manifest, request)
            request = validation.Denial(refused, 403) if refused else request
        if isinstance(request, validation.Denial):
            if own is not None:
                await self.reservation.release(own[0].name, own[1].id)
            return review.deny(request.code, request.sentence)
        if missing is not None:
            return _starting(missing)
        warnings: tuple[str, ...] = ()
        if own is None:
            # No warnings for a dry run: if reinvoked, it has no reservation that proves our own annotations genuine.
            warnings = () if is_dry else validation.warnings(view, request)
            wanted = mutation.as_asked(view, request)
        else:
            node, entry = own
            hostname = self.store.chooser.hostname(node.name)
            wanted = mutation.as_asked(view, request, pinned_to=hostname)
            if self._still_fits(wanted, request, node, entry):
                kept = mutation.Placed(entry.id, node.name, hostname, entry.shares, entry.labels.isolation)
                return _answer(manifest, wanted, request, kept, (), outcome="kept")
            await self.reservation.release(node.name, entry.id)
        held_back = pod_manifest.gate_reason(wanted, request) or self.store.premature(holder.namespace, wanted, request)
        if is_dry:
            planned = held_back or self.reservation.plan(wanted, request)
            return _answer(manifest, wanted, request, planned, (), outcome="planned")
        outcome = held_back or await self.reservation.reserve(wanted, request, holder, waited)
        return _answer(manifest, wanted, request, outcome, warnings)

    def _translated(self, manifest: PodJson, syntax: str, namespace: str) -> review.ReviewResponse:
        """Answer with the pod in gpushare's syntax. It is not placed: the API server calls again with the result."""
        try:
            found = translation.translate(manifest, (translation.SYNTAXES[syntax],))
        except errors.GpushareError as error:
            return review.deny(422, str(error))
        if found is None:
            return review.allow("ignored")
        if (missing := self.store.missing()) is not None:
            return _starting(missing)
        if (evaded := self.store.evaded(namespace, found.replaced)) is not None:
            return review.deny(403, evaded)
        return _meaning(manifest, found)

    def _still_fits(self, wanted: PodJson, request: Request, node: GpuNode, entry: Allocation) -> bool:
        """Whether a pod that another webhook has changed can keep its reservation and run on its node."""
        kinds = self.store.chooser.kinds(request)
        if pod_manifest.gate_reason(wanted, request) or not matches_request(entry, request, node, kinds):
            return False
        self.store.assume(wanted, request, node.name, entry.id)  # as it is now, and not counted against itself
        return self.store.chooser.node_filter(wanted)(node.name) is None


def _meaning(manifest: PodJson, found: translation.Translation) -> review.ReviewResponse:
    meaning = f"{found.syntax.title}'s syntax is understood as {', '.join(found.lines)}"
    meanings = [meaning]
    if len(meaning) > review.MAX_WARNING:
        meanings = [f"{found.syntax.title}'s syntax is understood as {line}" for line in found.lines]
    return review.ReviewResponse(
        "translated",
        patch=mutation.patch(manifest, found.manifest),
        warnings=(*meanings, *found.notes),
        audit={"decision": f"translated: {meaning}"},
    )


def _starting(missing: str) -> review.ReviewResponse:
    return review.deny(503, f"gpushare is starting: {missing}; try again in a moment", outcome="unready")


def _answer(
    manifest: Any,
    wanted: PodJson,
    request: Request,
    outcome_of: mutation.Placed | Refusal,
    warnings: tuple[str, ...],
    *,
    outcome: str = "",
) -> review.ReviewResponse:
    patch = mutation.patch(manifest, mutation.rewrite(wanted, request, outcome_of))
    if isinstance(outcome_of, Refusal):
        # No warning for this cause: the placer places the pod within a second once it is stored.
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


async def find_reservation(
    view: PodSpecView, holder: PodRef, store: ledger_store.LiveLedger
) -> tuple[GpuNode, Allocation] | None:
    """Return the reservation that this pod already has, with its node, or None. Raises UnreachableError."""
    allocation_id, name = view.annotations.get(contract.ALLOCATION), view.annotations.get(contract.NODE)
    if not allocation_id or not name:
        return None
    for is_fresh in (False, True):
        if is_fresh:
            await store.refresh(name)
        node_view = store.view(name)
        if node_view is None:
            continue
        for entry in node_view.node.allocations:
            if entry.id == allocation_id and is_own_reservation(entry, holder):
                return node_view.node, entry
    return None


def is_own_reservation(entry: Allocation, holder: PodRef) -> bool:
    """Whether this unconfirmed reservation was made for this very pod, whose UID is unknown before it is stored."""
    return entry.reserved_until is not None and entry.pod == holder


def _as_given(asked: GivenShare, given: Sequence[GivenShare]) -> GivenShare:
    """Return the requested share on the MIG device of the given one, if it has one."""
    device = given[0].mig if given else None
    return asked if device is None else mig_shares.on_device(asked, device)


def matches_request(entry: Allocation, request: Request, node: GpuNode, kinds: Collection[Isolation]) -> bool:
    """Whether the reservation is exactly what the pod requests now, on GPUs that fit. kinds: that it may get."""
    constraints, gpus = isolation.resolved(request, entry.labels.isolation).constraints, node.gpu_by_uuid()
    if entry.labels.isolation not in kinds or entry.labels != constraints.labels or entry.latency != request.latency:
        return False
    if {share.containers for share in entry.shares} != {demand.containers for demand in request.demands}:
        return False
    for demand in request.demands:
        mine = [share for share in entry.shares if share.containers == demand.containers]
        own = [gpus[uuid] for share in mine for uuid in share.gpu_uuids if uuid in gpus]
        if len({gpu.uuid for gpu in own}) != demand.gpus or mine != [_as_given(demand.on(own), mine)]:
            return False
        asked = (filters.FilterInput(gpu, ledger.NOTHING, demand.share, constraints) for gpu in own)
        if any(filters.reject(each) is not None for each in asked):
            return False
        cut = ((gpus[uuid], share.mig) for share in mine if share.mig for uuid in share.gpu_uuids if uuid in gpus)
        if not all(mig_shares.is_cut_for(gpu, demand.share, made) for gpu, made in cut):
            return False
    return True
