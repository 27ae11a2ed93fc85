"""Imports that would cost the agent memory on every node. Sets of modules are compared because import times vary."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_the_cluster_client_does_not_import_the_generated_one() -> None:
    modules = ("api_client", "informer", "retrying", "election", "events")
    script = "import sys; " + "; ".join(f"import gpushare.cluster.{name}" for name in modules)
    script += "; print(sorted({name.split('.')[0] for name in sys.modules}))"
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert "aiohttp" in imported.stdout
    for unwanted in ("kubernetes_asyncio", "yaml", "urllib3", "numpy", "grpc"):
        assert unwanted not in imported.stdout
