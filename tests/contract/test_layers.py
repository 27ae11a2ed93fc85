"""The import rules in .importlinter hold, cover every module, and detect violations."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("gpushare", "webhook", "deviceplugin", "kubectl_gpushare", "lab")
NOT_DOMAIN = {"__init__", "cluster", "daemon"}


def lint(directory: Path) -> subprocess.CompletedProcess[str]:
    # The command puts the working directory first on sys.path; run as a module, it would look elsewhere.
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)


def rules() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(REPOSITORY / ".importlinter")
    return parser


def test_all_import_rules_hold() -> None:
    done = lint(REPOSITORY)
    assert done.returncode == 0, done.stdout


def test_the_domain_has_all_modules_but_cluster_and_daemon() -> None:
    paths = [
        path for path in (REPOSITORY / "gpushare").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    modules = {f"gpushare.{path.stem}" for path in paths if path.stem not in NOT_DOMAIN}
    assert set(rules()["importlinter:contract:domain"]["source_modules"].split()) == modules
    layers = rules()["importlinter:contract:layers"]["layers"].replace("|", " ").split()
    assert modules <= set(layers)


def test_every_package_is_covered_by_a_rule() -> None:
    assert tuple(rules()["importlinter"]["root_packages"].split()) == PACKAGES
    packages = {path.parent.name for path in REPOSITORY.glob("*/__init__.py")}
    assert packages - {"tests", "bench"} == set(PACKAGES)


PLANTED = [
    ("webhook/planted.py", "from deviceplugin import offer", "The three components never import each other"),
    ("gpushare/allocation.py", "import os", "The domain has no I/O, no clock and no logging"),
    ("gpushare/allocation.py", "from gpushare import ledger", "Components import cluster and daemon"),
    ("gpushare/ledger.py", "import numpy", "Only gpushare.placement imports numpy"),
    ("deviceplugin/planted.py", "import pynvml", "Only the nvml modules of"),
    (
        "deviceplugin/report/planted.py",
        "from deviceplugin import node_parts",
        "import only those below them",
    ),
    (
        "deviceplugin/modes/planted.py",
        "from deviceplugin.report import share_peaks",
        "import only those below them",
    ),
    (
        "deviceplugin/modes/planted.py",
        "from deviceplugin.kubelet import plugin_registration",
        "import only those below them",
    ),
    ("deviceplugin/state/planted.py", "from deviceplugin import cluster_objects", "import only those below them"),
    (
        "webhook/store/planted.py",
        "from webhook.controllers.gated_pods import waiting_units",
        "above the controllers, the store",
    ),
    (
        "deviceplugin/arbiter/wire.py",
        "from gpushare.cluster import api_client",
        "The arbiter does not import",
    ),
    (
        "deviceplugin/arbiter/planted.py",
        "from deviceplugin.link import node_shares",
        "The arbiter does not import",
    ),
    (
        "webhook/controllers/gated_pods/planted.py",
        "from webhook.controllers import resizer",
        "The controllers do not import",
    ),
    ("webhook/planted.py", "import grpc", "Only deviceplugin imports grpc"),
    ("webhook/planted.py", "import click", "Only kubectl_gpushare and lab import click"),
    (
        "kubectl_gpushare/planted.py",
        "from gpushare.cluster import api_client",
        "reaches the cluster only through kubectl",
    ),
    ("gpushare/daemon/planted.py", "from lab import lab_layout", "The product does not import the lab"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Check a copy of the packages with all violations at once: each run takes half a second."""
    directory = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "*.go", "*.c", "*.h")
        shutil.copytree(REPOSITORY / package, directory / package, ignore=ignored)
    shutil.copy(REPOSITORY / ".importlinter", directory)
    for module, line, _ in PLANTED:
        with (directory / module).open("a") as file:
            file.write(f"\n{line}\n")
    return lint(directory).stdout


@pytest.mark.parametrize(("module", "line", "rule"), PLANTED)
def test_a_planted_violation_is_found(report: str, module: str, line: str, rule: str) -> None:
    """The report explains each broken rule below its name, with the imports that break it."""
    importer = module.removesuffix(".py").replace("/", ".")
    imported = line.split()[1]
    explanations = re.split(r"^(.+)\n-+$", report, flags=re.MULTILINE)
    found = [text for name, text in zip(explanations[1::2], explanations[2::2], strict=True) if rule in name]
    assert any(re.search(rf"\b{re.escape(importer)} -> {re.escape(imported)}\b", text) for text in found), report
