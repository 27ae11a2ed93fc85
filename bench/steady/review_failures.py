"""The webhook's log entries about reviews that failed. A log is deleted with its pod, so it is linked at once."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpushare import contract
from lab import gpushare, lab_layout, node_mounts

LOGS = f"{contract.SYSTEM_NAMESPACE}_{gpushare.WEBHOOK}-*/*/*.log"
SAYS = '"msg": "Failed to review a pod"'
POLL_SECONDS = 0.5
MAX_SENTENCES = 3


class ReviewLogs:
    """Links to every log that the replicas write between `start` and `stop`."""

    def __init__(self, lab: lab_layout.Layout) -> None:
        self._directories = [node_mounts.inside_directory(lab, node, "/var/log/pods") for node in lab.nodes]
        self._kept = tempfile.TemporaryDirectory(prefix="gpushare-", dir=lab.directory)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="review logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[str]:
        """Return the reasons with their stacks, the most common first."""
        self._stopping.set()
        self._thread.join()
        with self._kept as directory:
            stacks = collections.Counter(
                f"{line['err']}\n{line.get('stack', '')}"
                for path in Path(directory).iterdir()
                for line in _failures(path)
            )
        return [f"{count} reviews failed: {stack}" for stack, count in stacks.most_common(MAX_SENTENCES)]

    def _run(self) -> None:
        while True:
            is_last = self._stopping.wait(POLL_SECONDS)
            for directory in self._directories:
                for path in directory.glob(LOGS):
                    link = Path(self._kept.name) / "_".join(path.relative_to(directory).parts)
                    with contextlib.suppress(FileExistsError, FileNotFoundError):  # already linked, or deleted
                        os.link(path, link)
            if is_last:
                return


def _failures(path: Path) -> Iterator[dict[str, Any]]:
    """Yield failed reviews. Each line has the kubelet's time, stream and tag before the container's output."""
    for line in path.read_text().splitlines():
        if SAYS in line:
            yield json.loads(line.split(" ", 3)[3])
