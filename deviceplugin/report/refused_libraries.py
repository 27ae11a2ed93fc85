"""Tells of pods whose library speaks no version of the protocol that this agent does: once each, with the remedy.

The library has said so on stderr, where nobody may look, and asks again and again; meanwhile the program shares its GPU
by the clock, and processes that restart in the container are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from deviceplugin.host.identity import Container
from gpushare import contract, pod
from gpushare.pod import PodJson


class RefusedLibraries:
    """pods: those of the node; warn: an Event with this reason and note, about the GPUNode and a pod by its name."""

    def __init__(
        self, pods: Callable[[], Iterable[PodJson]], warn: Callable[[str, str, tuple[str, str] | None], None]
    ) -> None:
        self._pods = pods
        self._warn = warn
        self._told: frozenset[str] = frozenset()

    def refused(self, container: Container, sentence: str) -> None:
        """The arbiter has refused a process of it for that. A pod that is not known yet will ask again."""
        known = {pod.uid(manifest): pod.namespaced_name(manifest) for manifest in self._pods()}
        uid = container.pod_uid
        if uid in known and uid not in self._told:
            self._told = (self._told & known.keys()) | {uid}
            self._warn(contract.EVENT_LIBRARY_REFUSED, sentence, known[uid])
