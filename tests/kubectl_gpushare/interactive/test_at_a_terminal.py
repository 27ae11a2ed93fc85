"""`top -i` at a real terminal: with a cluster that changes, with one that goes away, and without what it needs."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gpushare import contract
from kubectl_gpushare import cli
from kubectl_gpushare.commands import top
from tests import builders
from tests.kubectl_gpushare import tmux
from tests.kubectl_gpushare.conftest import Kubectl, Plugin, environment
from tests.kubectl_gpushare.test_live import answer


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short:  # a socket's path must be short
        yield Path(short)


def opened(folder: Path, variables: dict[str, str]) -> AbstractContextManager[tmux.Window]:
    """Open a window of 80 columns and 24 lines."""
    kept = {key: value for key, value in variables.items() if key not in {"COLUMNS", "LINES"}}
    return tmux.window(folder, {**kept, "HOME": str(folder), "LC_ALL": "C.UTF-8"}, columns=80, rows=24)


def row(pattern: str) -> Callable[[list[str]], bool]:
    return lambda shown: any(re.search(pattern, line) for line in shown)


@pytest.mark.apiserver
def test_a_person_cordons_a_gpu_and_asks_why_a_pod_waits(kubectl: Kubectl, namespace: str, folder: Path) -> None:
    with opened(folder, kubectl.environment) as window:
        window.type("echo before; kubectl gpushare top -i --no-usage")
        window.until(row(r"▾ gpu-1 "))
        assert window.state("alternate_on") == "1"
        window.press("/")
        window.shows("keep the filter")
        window.press("-l", "gpu-1/3")
        window.until(lambda shown: row(r"GPU 3 ")(shown) and not row(r"GPU 2 ")(shown))
        window.press("Enter")
        window.shows("q quit")
        window.press("End")
        window.press("c")
        shown = window.shows("gpu-1/3 cordoned: 1 pod stays on it (dry run)")
        assert shown[0] == "$ kubectl gpushare cordon gpu gpu-1/3"
        window.press("-l", "ticket 4711")  # the cursor is between the quotation marks
        window.shows("Enter: show what would happen")
        window.press("Enter")
        window.shows("Enter: cordon, as shown")
        window.press("Enter")
        window.until(row(r"GPU 3 .*Cordoned"))  # the watch brings it
        assert "ticket 4711" in str(kubectl.access.read(f"{contract.GPUNODE_PATH}/gpu-1"))
        window.press("c")
        window.shows("Enter: uncordon, as shown")
        window.press("Enter")
        window.until(row(r"GPU 3 .*Ready"))
        window.press("Escape")
        window.until(row(r"GPU 2 "))
        window.press("/")
        window.shows("keep the filter")
        window.press("-l", f"{namespace}/waiting")
        window.until(row(r"waiting .*Gated"))
        window.press("Enter")
        window.shows("q quit")
        window.press("Home", "Down", "w")
        window.shows(f"$ kubectl gpushare why waiting -n {namespace}")
        window.shows("Asks For:")
        window.press("q")
        window.until(row(r"waiting .*Gated"))
        window.press("q")
        window.until(lambda _: window.state("alternate_on") == "0")
        window.type("echo code $?; stty -a | grep -o -w -e '-*echo' -e '-*icanon'")
        window.until(lambda lines: [line for line in lines if line in {"echo", "icanon"}] == ["icanon", "echo"])


@pytest.fixture
def fake_cluster(fake_kubectl: Callable[[str], str], tmp_path: Path) -> dict[str, str]:
    """Make a cluster with node a, whose variables are returned. Nothing answers while the file `away` exists."""
    (tmp_path / "list").write_text(answer(builders.node("a", gpus=1)))
    program = fake_kubectl(f"""
        cd {tmp_path}
        if [ -e away ]; then echo "error: Unable to connect to the server: no route" >&2; exit 1; fi
        case "$3" in
            *watch=true*) echo $$ > watch; while [ ! -e away ]; do sleep 0.05; done; exit 1;;
            *gpunodes*) cat list;;
            *configmaps*) echo '{{"kind": "ConfigMap"}}';;
            *) echo '{{"kind": "List", "items": []}}';;
        esac
    """)
    return environment(KUBECTL_PATH=program, TERM="xterm-256color")


@pytest.mark.slow
@pytest.mark.parametrize("session", [["setsid", "--ctty"], ["setsid"]], ids=["with SIGHUP", "without SIGHUP"])
def test_a_closed_terminal_ends_it_and_its_kubectl(
    session: list[str], programs: Path, fake_cluster: dict[str, str], tmp_path: Path
) -> None:
    outside, inside = pty.openpty()
    command = [*session, str(programs / "kubectl-gpushare"), "top", "-i", "--no-usage"]
    with subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=fake_cluster) as process:
        os.close(inside)
        said = b""
        while b"q quit" not in said:
            assert select.select([outside], [], [], tmux.SECONDS)[0], said
            said += os.read(outside, 1 << 16)
        os.close(outside)
        try:
            assert process.wait(tmux.SECONDS) == 130
        finally:
            process.kill()
    watch = Path("/proc", (tmp_path / "watch").read_text().strip())
    assert not watch.exists() or "Z" in (watch / "stat").read_text().split()[2]


@pytest.mark.slow
def test_a_cluster_goes_away_and_comes_back(
    folder: Path, programs: Path, fake_cluster: dict[str, str], tmp_path: Path
) -> None:
    path = f"{programs}:{fake_cluster['PATH']}"
    with opened(folder, {**fake_cluster, "PATH": path}) as window:
        window.type("kubectl-gpushare top -i --no-usage")
        window.until(row(r"GPU 0 "))
        window.press("Down")
        (tmp_path / "away").touch()
        shown = window.until(row(r"not updated for \d+s: .*"))
        assert row(r"GPU 0 .*NoNode")(shown)  # what is known stays
        (tmp_path / "list").write_text(answer(builders.node("a", gpus=1), builders.node("b", gpus=1)))
        (tmp_path / "away").unlink()
        shown = window.until(row(r"▸ b "))
        window.until(lambda lines: not row("not updated")(lines))
        window.press("C-c")
        window.until(lambda _: window.state("alternate_on") == "0")
        window.type("echo code $?")
        window.shows("code 130")


def test_a_pipe_gets_one_sentence(plugin: Plugin, saved: Path) -> None:
    ended = plugin("top", "-i", "--from", saved)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: -i needs a terminal: leave it out, or use -w to follow changes in a pipe\n")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "_at_a_terminal", lambda: True)


@pytest.mark.parametrize(
    "words", [["gpus"], ["-w"], ["-o", "json"], ["--no-headers"], ["--sort-by", "mode"]], ids=" ".join
)
def test_the_tree_is_not_combined_with_what_lists_have(
    saved: Path, terminal: None, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["top", "-i", "--from", str(saved), *words]) == 1
    assert "error: -i shows the whole tree: leave out names, -w, -o, --no-headers" in capsys.readouterr().err


def test_without_textual_a_sentence_says_how_to_get_it(
    saved: Path, terminal: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("textual", "kubectl_gpushare.interactive"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    assert cli.main(["top", "-i", "--from", str(saved)]) == 1
    assert capsys.readouterr().err == (
        f"error: -i needs textual, which {sys.executable} lacks: install the plugin with its extra, gpushare[tui], or "
        f"run `{sys.executable} -m pip install textual`\n"
    )
