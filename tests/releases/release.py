"""Archived releases: the library, and the programs, which Python runs from their archive.

`keep.sh` creates the archives. Dependencies come from the present environment.
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
    """The programs and library of a release."""

    name: str
    library: Path
    python_path: tuple[Path, ...]
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)  # the present names by its names

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment in which Python finds the release's packages, and this tree's tests next to them."""
        return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, self.python_path)), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, function: Callable[[Any], Any], argument: Any = None) -> Any:
        """Call a function of `programs` with the release's packages; argument and result are JSON.

        Names in the function's file are replaced by the release's.
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


# For each release, names in the tests' programs that have changed since: the old and the present ones.
NAMES: Mapping[str, Mapping[str, str]] = {
    "0.2.0": {
        "deviceplugin.live": r"deviceplugin\.modes",
        "from gpushare.gpu import Mode": r"from gpushare\.gpunode import Mode",
        "from deviceplugin.arbiter import loss, record": r"from deviceplugin\.arbiter import share_ledger",
        "loss.read": r"share_ledger\.read_loss",
        "loss.write": r"share_ledger\.write_loss",
        "record.Record": r"share_ledger\.LedgerRecord",
        "record.all_in": r"share_ledger\.record_paths",
        "record.read": r"share_ledger\.read_record",
        "record.write": r"share_ledger\.write_record",
        "Book": "Checkpoint",
        "Contexts": "ContextCheckpoint",
        "InForce": "ActiveConfig",
        "Use": "ShareUse",
        "book": "mode_checkpoint",
        "groups": "share_ledgers",
        "deviceplugin.audit.contexts": "deviceplugin.audit.overhead",
        "from deviceplugin.hardware.faults import Notebook as FaultLog\nfrom deviceplugin.hardware.health import Fault": (
            "from deviceplugin.hardware.gpu_health import Fault, FaultLog"
        ),
        "deviceplugin.peaks": "deviceplugin.report.share_peaks",
        "health": "gpu_health",
        "keep": "save",
        "look": "sample",
        "peaks": "share_peaks",
        "selection": "config_choice",
    },
}


def kept(version: str) -> Release:
    """Return an archived release."""
    directory = HERE / version
    library = directory / f"libgpushare-{platform.machine()}.so"
    return Release(version, library, (directory / "programs.zip", ROOT), NAMES[version])


BEFORE = kept("0.2.0")  # the previous release
THIS = Release("this", container.LIBRARY, (ROOT,))
