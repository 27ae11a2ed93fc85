"""The model of the page as it changes: the whole as JSON, and the differences, for readers in other threads."""

from __future__ import annotations

import collections
import json
import threading
from collections.abc import Sequence
from typing import Final

from gpushare.gpunode import GpuNode
from kubectl_gpushare.ui import page_history, page_model
from kubectl_gpushare.ui.page_model import Json, Scene

_MAX_DIFFERENCES: Final = 200  # kept for readers that are behind; others read the whole again
_POINT_SECONDS: Final = 5  # between two points of the chart


class PageState:
    """The last model, its history, and the last differences."""

    def __init__(self, points: Sequence[Json] = (), changes: Sequence[Json] = ()) -> None:
        self._builder = page_model.ModelBuilder()
        self._changed = threading.Condition()
        self._model: Json = {}
        self._nodes: Sequence[GpuNode] = ()
        self._points = [*points]
        self._changes = [*changes]
        self._whole: bytes | None = None
        self._differences = collections.deque[tuple[int, bytes]](maxlen=_MAX_DIFFERENCES)
        self._version = 0
        self._is_closed = False

    def publish(self, scene: Scene) -> None:
        """Replace the model, and wake the readers."""
        model = self._builder.build(scene)
        point = page_history.point(model)
        new = page_history.compare(self._nodes, scene.snapshot.nodes, scene.at) if self._version else []
        with self._changed:
            if (
                self._points
                and not self._points[-1].get("told")
                and point["at"] < self._points[-1]["at"] + _POINT_SECONDS
            ):
                self._points[-1] = {**point, "at": self._points[-1]["at"]}
            else:
                self._points.append(point)
            self._points = page_history.thinned(self._points)
            self._changes = [*self._changes, *new][-page_history.MAX_CHANGES :]
            self._version += 1
            if self._model:
                difference = page_model.difference(self._model, model)
                document = {"version": self._version, **difference, "point": self._points[-1], "changes": new}
                self._differences.append((self._version, encoded(document)))
            self._model, self._nodes, self._whole = model, scene.snapshot.nodes, None
            self._changed.notify_all()

    def whole(self) -> bytes:
        """Return the model with its version and history as JSON."""
        with self._changed:
            if self._whole is None:
                self._whole = encoded(self.document())
            return self._whole

    def document(self) -> Json:
        return {"version": self._version, **self._model, "points": self._points, "changes": self._changes}

    def after(self, version: int, timeout_seconds: float) -> list[bytes] | None:
        """Wait for differences after `version`; empty on time out, None if the reader has to read the whole again."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version or self._is_closed, timeout_seconds)
            if self._version == version:
                return []
            known = [document for number, document in self._differences if number > version]
            return known if len(known) == self._version - version else None

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Wake all readers for the last time."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def encoded(document: Json) -> bytes:
    """Return JSON in UTF-8; a lone surrogate, which UTF-8 cannot have, becomes a question mark."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
