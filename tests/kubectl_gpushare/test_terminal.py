"""Sessions at a terminal, with a real kubectl, a real API server and a real shell."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubectl_gpushare import sample, tmux
from tests.kubectl_gpushare.conftest import PATIENCE, Kubectl

pytestmark = pytest.mark.apiserver

COMPLETION = Path("/usr/share/bash-completion/bash_completion")
NODES = "gpu-1 gpu-2 gpu-10"  # other tests have their own nodes
CLEARS = (b"\x1b[2J", b"\x1b[3J", b"\x1bc")


@pytest.fixture
def window(kubectl: Kubectl, namespace: str) -> Iterator[tmux.Window]:
    """Open a shell in which `kubectl gpushare` works."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:  # a socket's path must be short
        environment = {**kubectl.environment, "HOME": folder, "LC_ALL": "C.UTF-8"}
        for overrules_the_size in ("COLUMNS", "LINES"):
            environment.pop(overrules_the_size, None)
        with tmux.window(Path(folder), environment) as terminal:
            yield terminal


def widest(shown: list[str]) -> int:
    return max(map(len, shown))


def test_live_list_rewrites_changes_and_restores_the_terminal(window: tmux.Window, kubectl: Kubectl) -> None:
    window.type("echo before")
    window.shows("before")
    window.type(f"kubectl gpushare top gpus {NODES} -w")
    window.shows("TOTAL")
    assert (window.state("alternate_on"), window.state("cursor_flag")) == ("1", "0")
    before = window.screen()
    window.record()
    try:
        kubectl.cordon("gpu-1", sample.uuid("gpu-1", 3))
        after = window.until(lambda shown: any(re.match(r"gpu-1/3 .*Cordoned", line) for line in shown))
    finally:
        kubectl.cordon("gpu-1")
    window.until(lambda shown: any(re.match(r"gpu-1/3 .*Ready", line) for line in shown))
    assert window.screen() == before
    written = window.written()
    assert not any(clear in written for clear in CLEARS)
    rewritten = {int(line) for line in re.findall(rb"\x1b\[(\d+);1H", written)}
    changed = {number for number, pair in enumerate(zip(before, after, strict=True), 1) if pair[0] != pair[1]}
    assert len(changed) < len([line for line in before if line]) / 2  # the GPU, the totals, the caption
    assert rewritten == changed
    window.press("C-c")
    shown = window.until(
        lambda lines: lines[0].startswith("ready> echo before") and window.state("alternate_on") == "0"
    )
    assert "before" in shown[1]
    assert window.state("cursor_flag") == "1"
    window.type("echo code $?; stty -a | grep -o -w -e '-*echo' -e '-*icanon'")
    shown = window.shows("code 130")
    window.until(lambda lines: [line for line in lines if line in {"echo", "icanon"}] == ["icanon", "echo"])


def test_a_live_list_follows_the_size_of_the_window(window: tmux.Window) -> None:
    window.resize(200, 40)
    window.type(f"kubectl gpushare top gpus {NODES} -w")
    shown = window.shows("TOTAL")
    assert 120 < widest(shown) <= 200
    assert any("MODE" in line and "FRAG" in line for line in shown)
    window.resize(40, 60)
    shown = window.until(lambda lines: "not shown at this width: MODE" in " ".join(lines) and lines[-1] == "")
    assert widest(shown) <= 40
    assert [line.split()[0] for line in shown if line.startswith("gpu-1/")] == [f"gpu-1/{index}" for index in range(4)]
    window.resize(120, 8)
    shown = window.until(lambda lines: len(lines) == 8 and "more lines" in lines[7])
    assert shown[0] == "warning: 4 more, seen without -w"
    assert any(line.startswith("gpu-1/0") for line in shown)
    window.resize(120, 40)
    shown = window.until(lambda lines: any(line.startswith("TOTAL") for line in lines))
    assert not any("more lines" in line for line in shown)
    window.press("q")
    window.until(lambda _: window.state("alternate_on") == "0")


@pytest.mark.parametrize(("columns", "left_out"), [(40, True), (200, False)])
def test_a_list_fits_the_window(window: tmux.Window, columns: int, left_out: bool) -> None:
    window.resize(columns, 60)
    window.type(f"clear; kubectl gpushare top gpus {NODES} --no-usage 2>/dev/null")
    shown = window.shows("TOTAL")
    table = [line for line in shown if line.startswith(("NAME", "gpu-", "TOTAL"))]
    assert len(table) == 15  # no line was broken in two
    assert any("not shown at this width" in line for line in shown) == left_out


def test_colours_are_only_for_a_terminal(window: tmux.Window) -> None:
    window.type(f"kubectl gpushare top gpus {NODES} --no-usage")
    window.shows("TOTAL")
    assert any("\x1b[32m" in line and "Ready" in line for line in window.screen(colours=True))
    window.type(f"clear; kubectl gpushare top gpus {NODES} --no-usage | cat -v")
    shown = window.shows("TOTAL")
    assert not any("^[" in line for line in shown)
    window.type("clear; NO_COLOR=1 kubectl gpushare describe gpu gpu-1/0; echo en''ded")
    window.shows("ended")
    assert not any("\x1b[3" in line or "\x1b[4" in line for line in window.screen(colours=True))


def test_an_error_is_a_sentence_below_the_command(window: tmux.Window) -> None:
    window.type("kubectl gpushare describe node nope; echo code $?")
    shown = window.shows("code 1")
    assert any(line.startswith('error: no GPUNode "nope": is it a GPU node') for line in shown)
    window.type("clear; kubectl gpushare top --context nope; echo ended by $?")
    assert any('context "nope" does not exist' in line for line in window.shows("ended by 1"))


@pytest.mark.skipif(not COMPLETION.exists(), reason="no bash-completion: apt-get install bash-completion")
def test_the_shell_completes_verbs_and_names(window: tmux.Window, namespace: str) -> None:
    window.type(f"source {COMPLETION}; source <(kubectl completion bash); echo loaded")
    window.shows("loaded")
    window.type("clear")
    describe, why = f"kubectl gpushare describe {PATIENCE}", f"kubectl gpushare why {PATIENCE}"
    for typed, completed in (
        ("kubectl gpushare desc", "kubectl gpushare describe "),
        (f"{describe} node gpu-10", f"{describe} node gpu-10 "),
        (f"{describe} gpu gpu-2/3", f"{describe} gpu gpu-2/3 "),
        (f"{why} -n {namespace} wai", f"{why} -n {namespace} waiting "),
        ("kubectl gpushare top --sort", "kubectl gpushare top --sort-by "),
    ):
        window.press("C-u")
        window.until(lambda lines: lines[0].rstrip() == "ready>")
        window.press("-l", typed)
        window.press("Tab")
        window.press("-l", "|")  # where the cursor is: a space at the end of a line cannot be seen
        window.until(lambda lines, wanted=completed: lines[0] == f"ready> {wanted}|")  # type: ignore[misc]


@pytest.mark.skipif(not COMPLETION.exists(), reason="no bash-completion: apt-get install bash-completion")
def test_shell_completes_once_the_program_is_on_path(window: tmux.Window, programs: Path, namespace: str) -> None:
    (programs / "kubectl_complete-gpushare").unlink()  # as krew leaves it
    window.type(
        f"kubectl gpushare completion --to {programs} && source {COMPLETION}; source <(kubectl completion bash); echo loa''ded"
    )
    window.shows("loaded")
    window.type("clear")
    window.until(lambda lines: lines[0].rstrip() == "ready>")
    typed = f"kubectl gpushare describe {PATIENCE} gpu gpu-2/3"
    window.press("-l", typed)
    window.press("Tab")
    window.press("-l", "|")
    window.until(lambda lines: lines[0] == f"ready> {typed} |")
