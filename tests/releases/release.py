"""A release that is kept here: its library, and its programs, which Python runs from their archive.

`keep.sh` makes them. What they need of other packages, they take from this environment.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.interposer import container

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """What a cluster of it runs."""

    name: str
    library: Path
    python_path: tuple[Path, ...]
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)  # those of today by what it calls them

    @property
    def environment(self) -> Mapping[str, str]:
        """In which Python finds its packages, and this tree's tests beside them."""
        return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, self.python_path)), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, function: Callable[[Any], Any], argument: Any = None) -> Any:
        """What a function of `programs` makes of that with its packages: both are JSON.

        Its file is read with the names that the release has.
        """
        code = Path(function.__code__.co_filename).read_text()
        for name, now in self.names.items():
            code = re.sub(rf"\b{now}\b", name, code)
        program = f"{code}\nimport json, sys\njson.dump({function.__name__}(json.load(sys.stdin)), sys.stdout)"
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            input=json.dumps(argument),
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


# By release, of the names that the tests' programs use, those that were others then: what they were, and are today.
NAMES: Mapping[str, Mapping[str, str]] = {
    "0.2.0": {
        "deviceplugin.live": r"deviceplugin\.modes",
        "deviceplugin.arbiter": r"deviceplugin\.arbiter\.ledgers",
        "loss.read": r"recovery\.read_loss",
        "loss.write": r"recovery\.write_loss",
        "Book": "Checkpoint",
        "Contexts": "ContextCheckpoint",
        "InForce": "ActiveConfig",
        "Record": "LedgerRecord",
        "Use": "ShareUse",
        "book": "mode_checkpoint",
        "groups": "share_ledgers",
        "deviceplugin.peaks": "deviceplugin.report.share_peaks",
        "health": "gpu_health",
        "loss": "recovery",
        "peaks": "share_peaks",
        "record": "ledger_record",
        "selection": "config_choice",
    },
}


def kept(version: str) -> Release:
    """One of the past."""
    directory = HERE / version
    library = directory / f"libgpushare-{platform.machine()}.so"
    return Release(version, library, (directory / "programs.zip", ROOT), NAMES[version])


BEFORE = kept("0.2.0")  # the release before this one
THIS = Release("this", container.LIBRARY, (ROOT,))
