"""Unschedulable pods: placed, but the scheduler cannot bind them there; which of them to evict, and when. Pure.

What was free when a pod was placed may be taken by the time it is bound, and a node may go. A pin cannot be taken back,
so only a pod that somebody makes anew can be placed anew. Whoever is evicted may count that as a failure (a Job does),
and what made the pod unschedulable may be there for the next one too: so the pace for one owner halves each time.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from gpushare import contract, pod
from webhook.pods import unbindable_pods

PodJson = Mapping[str, Any]

OWNER_PAUSE_SECONDS: Final = 120.0
MOST_OWNER_PAUSE_SECONDS: Final = 3600.0
MOST_A_MINUTE: Final = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """The controller that makes a pod anew when it is gone."""

    kind: str
    name: str
    uid: str


def why(one: PodJson) -> str | None:
    """The scheduler's own words, if it cannot bind a pod that was placed; else None."""
    return None if (one.get("metadata") or {}).get("deletionTimestamp") else unbindable_pods.why(one)


def owner(one: PodJson) -> Owner | None:
    """Who makes it anew; None for a pod that nobody does."""
    for reference in (one.get("metadata") or {}).get("ownerReferences") or []:
        if reference.get("controller"):
            return Owner(*(str(reference.get(key, "")) for key in ("kind", "name", "uid")))
    return None


def explain(one: PodJson, words: str, made_anew_by: Owner | None) -> str:
    """The whole sentence, with what happens next or what to do."""
    node = pod.annotations_of(one).get(contract.NODE, "")
    said = f"was placed on {node}, where the scheduler cannot bind it: {words or 'it does not say why'}"
    if made_anew_by is None:
        return f"{said}; a pod that was placed stays: delete it and create it anew to have it placed elsewhere"
    return f"{said}; it is evicted when the pace allows, so that {made_anew_by.kind} {made_anew_by.name} makes it anew"


class UnschedulableSince:
    """Since when each pod is stuck, by our own clock: two clocks are never compared."""

    def __init__(self, after_seconds: float) -> None:
        self._after_seconds = after_seconds
        self._since: dict[str, float] = {}

    def overdue(self, uids: Mapping[str, PodJson], *, now: float) -> tuple[list[PodJson], float | None]:
        """Those that have been stuck for long enough, of those that are now; and when the next will have been."""
        self._since = {uid: self._since.get(uid, now) for uid in uids}
        due = [uids[uid] for uid, since in self._since.items() if now - since >= self._after_seconds]
        later = [since + self._after_seconds for since in self._since.values() if now - since < self._after_seconds]
        return due, min(later, default=None)


class EvictionRate:
    """How fast pods may be evicted: per owner ever slower, and altogether so many a minute."""

    def __init__(self) -> None:
        self._owners: dict[str, tuple[float, float]] = {}  # uid -> not before, the pause after that
        self._recent: collections.deque[float] = collections.deque(maxlen=MOST_A_MINUTE)

    def wait_seconds(self, who: Owner, *, now: float) -> float:
        """How long to wait before evicting one more of this owner's; 0 when now will do."""
        not_before, _ = self._owners.get(who.uid, (now, 0.0))
        minute = self._recent[0] + 60.0 if len(self._recent) == MOST_A_MINUTE else now
        return max(0.0, not_before - now, minute - now)

    def evicted(self, who: Owner, *, now: float) -> None:
        """Count an eviction."""
        self._recent.append(now)
        kept = {uid: known for uid, known in self._owners.items() if now < known[0] + MOST_OWNER_PAUSE_SECONDS}
        _, pause = kept.get(who.uid, (now, OWNER_PAUSE_SECONDS))
        self._owners = {**kept, who.uid: (now + pause, min(2 * pause, MOST_OWNER_PAUSE_SECONDS))}
