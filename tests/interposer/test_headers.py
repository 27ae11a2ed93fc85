"""No function of CUDA is left out by oversight: each is in hooks.def, or in unhooked.txt with a reason."""

from __future__ import annotations

import fnmatch
import functools
import re

import pytest

from tests.interposer import cuda_headers
from tests.interposer.container import ROOT

SOURCES = ROOT / "interposer"
# What takes memory, gives it back, changes or runs something, or tells sizes, has one of these in its name.
TELLING = re.compile(
    r"Alloc|Create|Retain|Capture|Total|Launch|Free|Info|Map|Pool|Import|Export|Open|Bind|Load|Instantiate|Upload|Clone|Limit"
    r"|Update|NodeSetParams"
)
_FORM = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")


def base(name: str) -> str:
    return _FORM.sub("", name)


def hooked(kinds: str = "HOOK|REFUSE|LAUNCH") -> set[str]:
    rows = re.findall(
        rf"^(?:{kinds})\((?:(\w+), )?(\w+),", (SOURCES / "driver" / "hooks.def").read_text(), re.MULTILINE
    )
    return {name for library, name in rows if library != "NVML"}


def unhooked() -> dict[str, str]:
    """Patterns of names, and why."""
    why, reasons = "", {}
    for line in (SOURCES / "driver" / "unhooked.txt").read_text().splitlines():
        if line.startswith("["):
            why = line.strip("[]")
        elif not line.startswith("#"):
            for pattern in line.split():
                assert pattern not in reasons, f"{pattern} is there twice"
                assert why
                reasons[pattern] = why
    return reasons


def excused(name: str, patterns: set[str]) -> set[str]:
    """The patterns that let a function be."""
    if name in hooked() or base(name) in patterns:
        return {base(name)} & patterns
    if TELLING.search(name):
        return set()
    return {pattern for pattern in patterns if pattern.endswith("*") and fnmatch.fnmatchcase(base(name), pattern)}


@functools.cache
def functions(version: str) -> frozenset[str]:
    try:
        return cuda_headers.functions(version)
    except cuda_headers.UnavailableError as error:
        if cuda_headers.in_ci():
            raise
        pytest.skip(f"{error}: connect to a package index and run again, for this is the check of hooks.def")


@pytest.mark.slow
@pytest.mark.parametrize("version", cuda_headers.PACKAGES)
def test_every_function_is_hooked_or_excused(version: str) -> None:
    patterns, bases = set(unhooked()), {base(name) for name in hooked()}
    names = functions(version)
    assert len(names) > 500
    assert cuda_headers.typed(version) <= {base(name) for name in names}
    left_out = {name for name in names - hooked() if base(name) in bases or not excused(name, patterns)}
    assert sorted(left_out) == [], f"CUDA {version}: put each into hooks.def, or into unhooked.txt with a reason"


@pytest.mark.slow
def test_every_hook_and_every_excuse_is_of_a_function_that_exists() -> None:
    names = frozenset[str]().union(*map(functions, cuda_headers.PACKAGES))
    patterns = set(unhooked())
    assert hooked("HOOK|REFUSE|LAUNCH|NEED") - names == set()
    used = set[str]().union(*(excused(name, patterns) for name in names))
    assert patterns - used == set()


def test_what_is_hooked_is_not_excused() -> None:
    assert {base(name) for name in hooked()} & set(unhooked()) == set()


@pytest.mark.parametrize(
    "name", ["cuMemAllocSideways", "cuGraphAddNode_v9", "cuLaunchKernelNext", "cuCtxCreateGroup", "cuGraphUpdate"]
)
def test_a_new_function_that_sounds_like_taking_or_running_is_found(name: str) -> None:
    assert name not in hooked()
    assert base(name) in {base(hook) for hook in hooked()} or not excused(name, set(unhooked()))
