"""What an agent on every node would carry for nothing stays out: a set of modules does not flake as seconds do."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_the_client_is_imported_without_the_generated_one() -> None:
    modules = ("api_client", "informer", "compare_and_swap", "election", "events")
    script = "import sys; " + "; ".join(f"import gpushare.cluster.{name}" for name in modules)
    script += "; print(sorted({name.split('.')[0] for name in sys.modules}))"
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert "aiohttp" in imported.stdout
    for unwanted in ("kubernetes_asyncio", "yaml", "urllib3", "numpy", "grpc"):
        assert unwanted not in imported.stdout
