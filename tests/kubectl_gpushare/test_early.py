"""kubectl is asked before the words are parsed: for the right thing, once, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from kubectl_gpushare import cli, early
from tests.kubectl_gpushare.conftest import SECONDS, Plugin, environment

EMPTY = '{"kind": "GPUNodeList", "items": []}'
PLAIN = "get --raw /apis/gpushare.io/v1alpha1/gpunodes"


@pytest.fixture
def recording(tmp_path: Path, fake_kubectl: Callable[[str], str]) -> tuple[str, Callable[[], list[str]]]:
    """A kubectl that says there is nothing, and the commands it was given."""
    log = tmp_path / "log"
    log.touch()
    program = fake_kubectl(f"echo \"$*\" >> {log}; echo '{EMPTY}'")
    return program, lambda: log.read_text().splitlines()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    early.end()


def options(verb: str) -> Iterator[click.Option]:
    command = cli.group.get_command(click.Context(cli.group), verb)
    assert command is not None
    yield from (parameter for parameter in command.params if isinstance(parameter, click.Option))


@pytest.mark.parametrize("verb", early.VALUES)
def test_the_flags_known_early_are_those_of_the_verb(verb: str) -> None:
    own = [option for option in options(verb) if option.name not in {"files", "help"}]
    connection = {f"--{name}" for name in early.CONNECTION}
    values = {flag for option in own if not option.is_flag for flag in option.opts}
    switches = {flag for option in own if option.is_flag for flag in (*option.opts, *option.secondary_opts)}
    assert values - connection == early.VALUES[verb]
    assert connection <= values
    assert switches == early.SWITCHES[verb]
    assert {option.opts[0] for option in own if option.multiple} & connection == {f"--{early.REPEATED}"}


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("top", PLAIN),
        ("top gpus gpu-1 -o wide --no-headers", PLAIN),
        ("top nodes -l a=b,c!=d", PLAIN),
        ("top --selector=a -o json", PLAIN),
        ("top pods -A -l app=web", PLAIN),
        ("top --as-group=a --context c --as jane --as-group b", f"{PLAIN} --context=c --as=jane --as-group=a --as-group=b"),
        ("top --context=one --context=two --request-timeout 5s", f"{PLAIN} --context=two --request-timeout=5s"),
        ("top --kubeconfig ''", PLAIN),
        ("audit -l a=b gpu-1 --no-headers", PLAIN),
        ("rightsize -A --margin 0.5 -o commands --context=c", f"{PLAIN} --context=c"),
        ("fit --request 0.5 --count 3 -n ml", PLAIN),
        ("defrag --request 1 --gpus 2 -o json", PLAIN),
    ],
)  # fmt: skip
def test_what_is_asked_early_is_what_the_verb_wants(
    plugin: Plugin, recording: tuple[str, Callable[[], list[str]]], line: str, asked: str
) -> None:
    program, log = recording
    words = [word if word != "''" else "" for word in line.split()]
    early.begin(words, {"KUBECTL_PATH": program})
    plugin(*words, KUBECTL_PATH=program)
    assert [entry for entry in log() if "gpunodes" in entry] == [asked]
    assert early.take((program, *asked.split())) is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--help",
        "version",
        "top --help",
        "top -h",
        "top --from x.json",
        "top --from=x.json",
        "top --nope",
        "top -ojson",
        "top -l=a",
        "top -wA",
        "top --no-headers=true",
        "describe node gpu-1",
    ],
)
def test_what_is_not_plain_to_see_starts_nothing(line: str) -> None:
    assert early.command(line.split()) is None


def test_what_nobody_wants_is_ended(fake_kubectl: Callable[[str], str], tmp_path: Path) -> None:
    program = fake_kubectl(f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 60")
    command = [sys.executable, "-m", "kubectl_gpushare", "top", "nodes", "gpu-1/0"]  # a mistake, seen later
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment(KUBECTL_PATH=program)
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: a node's name has no slash")
    if (tmp_path / "pid").exists():  # else it was ended before it could say so
        assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_login_that_goes_on_is_not_waited_for(fake_kubectl: Callable[[str], str], tmp_path: Path) -> None:
    login = tmp_path / "login"
    program = fake_kubectl(f"sleep 60 & echo $! > {login}.new; mv {login}.new {login}; wait")
    early.begin(["top"], {"KUBECTL_PATH": program})
    began = time.monotonic()
    while not login.exists():
        assert time.monotonic() - began < SECONDS
        time.sleep(0.01)
    try:
        began = time.monotonic()
        early.end()
        assert time.monotonic() - began < SECONDS / 2
    finally:
        os.kill(int(login.read_text()), signal.SIGKILL)


def test_a_kubectl_that_is_not_there_is_told_by_whoever_needs_it() -> None:
    early.begin(["top"], {"KUBECTL_PATH": "/nonexistent/kubectl"})
    ended = subprocess.run(
        [sys.executable, "-m", "kubectl_gpushare", "top"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=environment(KUBECTL_PATH="/nonexistent/kubectl"),
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "install kubectl" in ended.stderr
