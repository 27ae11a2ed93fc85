"""`why`: each candidate with the rule and figures against it; for a placed pod, why this GPU won."""

from __future__ import annotations

from collections.abc import Sequence

from gpushare import contract, isolation, mig_shares, pod, policies, quantity
from gpushare.placement import explanation, filters
from gpushare.refusal import Rejected
from kubectl_gpushare.output.values import Cell, Column, Document, Page, Section, Table, field, section
from kubectl_gpushare.planning import remedies
from kubectl_gpushare.planning.reasons import Reasons
from kubectl_gpushare.views import cell_figures, gpu_summary
from kubectl_gpushare.views import pod_page as described

MAX_CANDIDATES = 24  # lines, the nearest misses; documents have all

_MISSES = (Column("GPU", least=12, middle=True), Column("Rule"), Column("Why-Not", least=24, wrap=True))
_CHOICES = (
    Column("Rank"),
    Column("GPU", least=12, middle=True),
    Column("Left-On-It"),
    Column("Stranded-Then"),
    Column(""),
)


def page(described_pod: described.DescribedPod, reasons: Reasons, notes: Sequence[str]) -> Page:
    namespace, name = pod.namespaced_name(described_pod.manifest)
    head = (
        *field("Name", name),
        *field("Namespace", namespace),
        *field("Placement", described.placement(described_pod, str(reasons.refusal or ""))),
    )
    body = _placed(described_pod, reasons) if described_pod.entry else _waiting(described_pod, reasons)
    return (
        *head,
        *field("Asks For", *described.requested(described_pod.manifest)[0]),
        *field("Isolation", *_isolations(described_pod, reasons)),
        *field("If Recreated", reasons.if_recreated and f"denied: {reasons.if_recreated}", style="warn"),
        *body,
        *section("Not Looked At", notes, "warn"),
    )


def document(described_pod: described.DescribedPod, reasons: Reasons, notes: Sequence[str]) -> Document:
    namespace, name = pod.namespaced_name(described_pod.manifest)
    return {
        "namespace": namespace,
        "name": name,
        "placement": described_pod.placement,
        "asksFor": described.requested(described_pod.manifest)[0],
        "policy": reasons.policy,
        "isolation": described_pod.entry.labels.isolation.value if described_pod.entry else "",
        "isolations": [{"isolation": kind.value, "why": why} for kind, why in reasons.isolations],
        "reason": str(reasons.refusal or ""),
        "told": str(pod.annotations_of(described_pod.manifest).get(contract.REASON, "")),
        "ifRecreated": reasons.if_recreated,
        "heldBack": list(reasons.held_back),
        "preemption": reasons.preemption,
        "fitsOn": reasons.fits,
        "candidates": [
            {"gpu": _place(miss), "rule": miss.rule, "reason": miss.detail, "shortfall": round(miss.shortfall, 4)}
            for miss in _nearest(reasons)
        ],
        "changes": [{"kind": each.kind, "change": each.sentence, "gpus": each.gpus} for each in reasons.changes],
        "choices": [
            {
                "rank": number,
                "gpus": choice.gpus,
                "isolation": choice.placement.isolation.value,
                "left": {"computePercent": choice.left[0], "memoryBytes": choice.left[1]},
                "strandedGpus": round(choice.after.stranded_gpus, 4),
                "summary": f"{quantity.format_compute(choice.left[0])} and {quantity.format_bytes(choice.left[1])} "
                "would be left",
            }
            for number, choice in enumerate(reasons.choices, 1)
        ],
        "notes": list(notes),
    }


def _isolations(described_pod: described.DescribedPod, reasons: Reasons) -> list[str]:
    """Return the kind that a placed pod got, or those that are tried for a waiting one, each with the reason."""
    entry, tried = described_pod.entry, reasons.isolations
    given = () if entry is None else (entry.labels.isolation,)
    if not described.is_isolation_notable(reasons.asked.request, *given, *(kind for kind, _ in tried)):
        return []
    if not given:
        return [f"{kind}: {why}" for kind, why in tried]
    shares = () if entry is None else entry.shares
    return [
        f"{mig_shares.described(kind, shares)}: {isolation.why_given(kind, tried)}{described_pod.in_partition}"
        for kind in given
    ]


def _waiting(described_pod: described.DescribedPod, reasons: Reasons) -> Page:
    reason = str(pod.annotations_of(described_pod.manifest).get(contract.REASON, ""))
    has_ended = pod.is_terminal(described_pod.manifest)
    ended = field("Ended", described.end(described_pod.manifest) if has_ended else "", style="warn")
    if has_ended and reasons.refusal is not None:
        return (*ended, *field("Fits", f"one like it would fit nowhere now: {reasons.refusal}"))
    if reasons.refusal is None:
        where = reasons.choices[0].gpus if reasons.choices else ""
        now = f"{'one like it' if has_ended else 'it'} would fit now, on {where}" if where else ""
        is_next = described_pod.placement == "Waiting" and not reasons.held_back
        nothing_else = "; the placer comes to it by priority, then age" if is_next else ""
        return (
            *ended,
            *field("Waits For", *(() if has_ended else reasons.held_back), style="warn"),
            # The placer knows more than is stored: its attempts and their results.
            *field("Recorded", "" if has_ended else reason),
            *field("Fits", now + nothing_else, style="good"),
            *_ranked(reasons, here=""),
        )
    nearest = _nearest(reasons)
    shown = [(_place(miss), miss.rule, miss.detail) for miss in nearest[:MAX_CANDIDATES]]
    more = len(nearest) - len(shown)
    changes = [f"{change.sentence}: on {change.gpus}" for change in reasons.changes]
    title = f"Candidates (the nearest {len(shown)}; {more} more with -o json)" if more else "Candidates"
    return (
        *field("Waits For", *reasons.held_back, style="warn"),
        *field("Reason", str(reasons.refusal), style="warn"),
        *field("Recorded", reason if reason and reason != str(reasons.refusal) else ""),
        *field("Nearest", str(nearest[0]) if nearest else ""),
        *field("Would Fit", *(changes or [remedies.NONE]), style="good" if changes else ""),
        *field("Preemption", reasons.preemption),
        Section(title, (Table(_MISSES, shown),)),
    )


def _placed(described_pod: described.DescribedPod, reasons: Reasons) -> Page:
    here = _held(described_pod)
    total = reasons.fits + sum(count for rule, count in reasons.ruled_out.items() if rule in filters.RULES)
    first = reasons.choices[0].gpus if reasons.choices else ""
    aim = f"by the policy {reasons.policy}, of the GPUs that fit, {policies.POLICIES[reasons.policy].aim}"
    if not first:
        won = "it would fit nowhere today: the cluster has changed since it was placed"
    elif first == here:
        won = f"{aim}: it would get the same if it came now"
    else:
        won = f"{aim}; that was {here} when it came, and would be {first} now"
    counts = reasons.ruled_out
    would_do = [f"{reasons.fits} of {total} GPUs would do"] if total else []
    would_do += [f"{counts[name]} {rule.phrase}" for name, rule in filters.RULES.items() if counts.get(name)]
    if nodes := counts.get(explanation.NODE_RULE):
        would_do.append(f"{nodes} node{'s' if nodes > 1 else ''} cannot take the pod")
    return (
        *field("Not Bound", described.unbound(described_pod.manifest), style="warn"),
        *field("Not Started", *described.not_started(described_pod.manifest), style="warn"),
        *field("Why There", won),
        *field("Would Do", "; ".join(would_do)),
        *_ranked(reasons, here=here),
    )


def _ranked(reasons: Reasons, *, here: str) -> tuple[Section, ...]:
    if not reasons.choices:
        return ()
    rows = []
    for number, choice in enumerate(reasons.choices, 1):
        more = round(choice.after.stranded_gpus - reasons.free_before, 2) + 0.0  # no -0.00
        style = "good" if choice.gpus == here else ""
        stranded = f"{cell_figures.gpus(choice.after.stranded_gpus)} ({more:+.2f})"
        here_too = Cell("it is here", "good") if choice.gpus == here else ""
        rows.append((str(number), Cell(choice.gpus, style), cell_figures.share(*choice.left), stranded, here_too))
    return (Section("Choices (as if it came now, the best first)", (Table(_CHOICES, rows),)),)


def _nearest(reasons: Reasons) -> list[Rejected]:
    missed = reasons.refusal.rejected if reasons.refusal else ()
    # A node that takes the pod once its agent is back is nearer than one that the pod does not want.
    back = {change.placement.node for change in reasons.changes if change.kind == remedies.AGENT}
    return sorted(
        missed,
        key=lambda miss: (miss.shortfall, miss.node not in back, gpu_summary.natural(miss.node), miss.gpu_index or 0),
    )


def _place(miss: Rejected) -> str:
    return miss.node if miss.gpu_index is None else f"{miss.node}/{miss.gpu_index}"


def _held(described_pod: described.DescribedPod) -> str:
    if described_pod.owner is None or described_pod.entry is None:
        return ""
    known = described_pod.owner.gpu_by_uuid()
    indexes = sorted(known[uuid].index for uuid in described_pod.entry.gpu_uuids if uuid in known)
    return f"{described_pod.owner.name}/" + ",".join(map(str, indexes))
