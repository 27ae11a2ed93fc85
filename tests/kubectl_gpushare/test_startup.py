"""What is imported, because that is what a command's start costs; a set of modules does not depend on the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.kubectl_gpushare.conftest import SECONDS, environment

SLOW = {"asyncio", "ssl", "aiohttp", "kubernetes_asyncio", "tabulate", "yaml"}
NEVER = {
    "asyncio",
    "ssl",
    "http.client",
    "aiohttp",
    "kubernetes_asyncio",
    "jsonpatch",
    "numpy",
    "prometheus_client",
    "grpc",
}


def modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=True, env=environment()
    )
    return set(result.stderr.splitlines())


def test_the_command_line_imports_nothing_slow() -> None:
    imported = modules_after("import kubectl_gpushare.cli")
    assert "kubectl_gpushare.cli" in imported
    assert not imported & SLOW
    assert not any(name.startswith("kubectl_gpushare.commands.") for name in imported)


def test_top_talks_through_kubectl_and_imports_no_client(saved: Path) -> None:
    run = f"from kubectl_gpushare import cli; assert cli.main(['top', '--from', {str(saved)!r}]) == 0"
    imported = modules_after(run)
    assert "kubectl_gpushare.views.gpus" in imported
    assert not imported & NEVER


def test_json_needs_no_table(saved: Path) -> None:
    run = f"from kubectl_gpushare import cli; assert cli.main(['top', '-o', 'json', '--from', {str(saved)!r}]) == 0"
    assert not modules_after(run) & (NEVER | {"tabulate", "yaml"})
