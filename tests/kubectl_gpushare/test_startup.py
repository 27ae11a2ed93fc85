"""Which modules are imported, because that is the cost of starting a command; unlike time, it is the same
everywhere.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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
    "textual",
    "rich",
}


# Modules that a plain `top` does not need.
UNASKED = {
    "yaml",
    "pathlib",
    "urllib.parse",
    "shutil",
    "textwrap",
    "fractions",
    "decimal",
    "csv",
    "tempfile",
    "logging",
}

# All our modules that `top` needs; a new one costs every user some milliseconds a call.
TOP = {
    "gpushare": "allocation annotation_values caps codec contract errors gpu_capacity gpu_status gpunode group_size isolation json_fields ledger mig mig_shares mix node object_parsers placement_profile pod policies printable quantity refusal request",
    "gpushare.mig": "instance_layout parted profile",
    "gpushare.whatif": "unavailable_nodes",
    "kubectl_gpushare": "__main__ candidates cli commands kubectl options output plugin_errors source views",
    "kubectl_gpushare.commands": "top",
    "kubectl_gpushare.output": "layout printing terminal values",
    "kubectl_gpushare.source": "chosen_source live_cluster live_usage snapshot",
    "kubectl_gpushare.views": "cell_figures gpu_summary gpu_table",
}


def ours(imported: set[str]) -> set[str]:
    return {name for name in imported if name.partition(".")[0] in {"gpushare", "kubectl_gpushare"}}


def modules_after(statement: str, **variables: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
        env=environment(**variables),
    )
    return set(result.stderr.splitlines())


def test_completion_and_help_of_verbs_import_no_numpy() -> None:
    """krew's archive lacks numpy, and completion imports the module of each verb that it offers."""
    load = "[cli.group.get_command(click.Context(cli.group), name) for name in cli.VERBS]"
    imported = modules_after(f"import click\nfrom kubectl_gpushare import cli\n{load}")
    assert "kubectl_gpushare.commands.simulate" in imported
    assert "numpy" not in imported


def test_the_command_line_imports_nothing_slow() -> None:
    imported = modules_after("import kubectl_gpushare.cli")
    assert "kubectl_gpushare.cli" in imported
    assert not imported & SLOW
    assert not any(name.startswith("kubectl_gpushare.commands.") for name in imported)


@pytest.mark.slow
def test_top_talks_through_kubectl_and_imports_no_client(saved: Path, fake_kubectl: Callable[[str], str]) -> None:
    top = "sys.argv = ['kubectl-gpushare', 'top', '--no-usage']; from kubectl_gpushare import __main__ as start"
    kubectl = fake_kubectl(f"exec cat {saved}")
    expected = {*TOP, *(f"{package}.{name}" for package, names in TOP.items() for name in names.split())}
    library = modules_after("import tabulate")
    imported = modules_after(f"{top}; assert start.main() == 0", KUBECTL_PATH=kubectl)
    assert ours(imported) == expected
    assert not imported & (NEVER | UNASKED) - library


@pytest.mark.slow
def test_json_needs_no_table(saved: Path) -> None:
    run = f"from kubectl_gpushare import cli; assert cli.main(['top', '-o', 'json', '--from', {str(saved)!r}]) == 0"
    assert not modules_after(run) & (NEVER | {"tabulate", "yaml"})


def test_views_are_not_imported_with_the_command() -> None:
    imported = modules_after("import kubectl_gpushare.commands.top")
    assert not {name for name in ours(imported) if name.startswith(("kubectl_gpushare.views", "gpushare.codec"))}
