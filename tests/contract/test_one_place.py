"""Some things have one place only: names that cross processes, and calls of the real dlsym."""

from __future__ import annotations

import ast
import collections
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import contract

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("gpushare", "webhook", "deviceplugin", "kubectl_gpushare", "lab")
SOURCES = [path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")]


# A verb's command and view share the verb's name; every other name identifies its module.
VERBS = {path.stem for path in (REPOSITORY / "kubectl_gpushare" / "commands").glob("*.py")}


def test_module_names_are_unique() -> None:
    places = collections.defaultdict(list)
    for path in SOURCES:
        if not path.name.startswith("__"):
            places[path.stem].append(str(path.relative_to(REPOSITORY)))
    of_verbs = {verb: [f"kubectl_gpushare/commands/{verb}.py", f"kubectl_gpushare/views/{verb}.py"] for verb in VERBS}
    assert {
        name: paths for name, paths in places.items() if len(paths) > 1 and sorted(paths) != of_verbs.get(name)
    } == {}


@pytest.mark.slow
def test_public_class_names_are_unique() -> None:
    places = collections.defaultdict(list)
    for path in SOURCES:
        if "kubelet_api" in path.parts:  # generated from the kubelet's proto files
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(REPOSITORY)}:{node.lineno}")
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def texts(tree: ast.AST) -> Iterator[str]:
    """Return the string constants that are not docstrings."""
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(first.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.value


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_keys_are_spelled_out_only_in_the_contract(path: Path) -> None:
    if path == REPOSITORY / "gpushare" / "contract.py":
        return
    written = [text for text in texts(ast.parse(path.read_text())) if text.startswith(contract.PREFIX)]
    # The API group with a version is not part of any annotation, label or resource name.
    assert [text for text in written if text != contract.API_VERSION] == []


def test_every_request_and_result_key_is_in_one_of_the_contracts_lists() -> None:
    annotations = {
        value
        for name, value in vars(contract).items()
        if isinstance(value, str) and value.startswith(contract.PREFIX) and value != contract.PREFIX
    }
    not_annotations = {
        *(
            contract.SCHEDULING_GATE,
            contract.BORROW_LABEL,
            contract.DEMAND_LABEL,
            contract.IN_USE_LABEL,
            contract.SHARE_LABEL,
            contract.NODE_CONFIG_LABEL,
            contract.API_VERSION,
            contract.OWN_LABELS,
            contract.ROTATE,
            contract.UNDERSTAND_PREFIX,
            contract.WRITTEN_BY_HELM,
        ),
        *(contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY, contract.RESOURCE_IDLE),
    }
    assert annotations - not_annotations == {*contract.REQUEST_KEYS, *contract.RESULT_KEYS}
    assert not set(contract.REQUEST_KEYS) & set(contract.RESULT_KEYS)
    assert set(contract.SHARE_KEYS) == set(contract.PER_CONTAINER_KEYS)


# A call rather than a declaration, definition or pointer: only an operator precedes it.
CALL = re.compile(
    r"(?:^|[=(,;&|!?:{}]|\breturn)\s*(dlsym|dlvsym|__libc_dlsym|_dl_sym|libc_function)\s*\(", re.MULTILINE
)
COMMENT_OR_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def calls(source: str) -> list[str]:
    return CALL.findall(COMMENT_OR_TEXT.sub(" ", source))


def test_only_driver_c_calls_the_real_dlsym() -> None:
    sources = sorted((REPOSITORY / "interposer").rglob("*.[ch]"))
    assert {path.name for path in sources if calls(path.read_text())} == {"driver.c"}


def test_calls_of_dlsym_are_distinguished_from_mentions() -> None:
    assert calls("void *p = dlsym(RTLD_NEXT, name);") == ["dlsym"]
    assert calls("if (x && dlvsym(h, n, v)) return dlsym(h, n);") == ["dlvsym", "dlsym"]
    assert calls('/* p = dlsym(x) */ void *dlsym(void *h, const char *s); say("= dlsym(");') == []
