"""Every example in every `--help` is run, on the sample cluster."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubectl_gpushare import cli
from tests.kubectl_gpushare.conftest import ROOT, Plugin

DOES_NOT_FIT = 2


def examples() -> Iterator[tuple[str, str]]:
    for verb in cli.VERBS:
        command = cli.group.get_command(None, verb)  # type: ignore[arg-type]
        assert command is not None
        for line in re.findall(r"^ *kubectl gpushare (.*)$", command.help or "", re.MULTILINE):
            yield verb, line


@pytest.mark.parametrize(("verb", "line"), list(examples()), ids=lambda text: str(text))
def test_an_example_of_the_help_runs(plugin: Plugin, saved: Path, tmp_path: Path, verb: str, line: str) -> None:
    words = shlex.split(line)
    assert words[0] == verb
    command = cli.group.get_command(None, verb)  # type: ignore[arg-type]
    assert command is not None
    command.make_context(verb, words[1:], resilient_parsing=False)
    if {"-w", "--apply"} & set(words) or verb in {"cordon", "uncordon", "config"}:
        return  # they need a cluster, or files of their own: run in their own tests
    trace = tmp_path / "trace.csv"
    trace.write_text("name,start,duration,request\na,0,10,0.5\nb,5,,1\n")
    manifest = ROOT / "config" / "samples" / "half-gpu.yaml"
    files = (("--from", saved), ("-f", manifest), ("--trace", trace), ("--plot", tmp_path / "plot.svg"))
    for flag, path in files:
        if flag in words:
            words[words.index(flag) + 1] = str(path)
    if verb == "config":
        words[words.index("node.yaml")] = str(ROOT / "config" / "samples" / "config" / "configmap.yaml")
    ended = plugin(*words, *([] if "--from" in words or verb in {"version", "config"} else ["--from", saved]))
    assert ended.code in {0, DOES_NOT_FIT if verb == "fit" else 0}, ended.err


@pytest.mark.parametrize("verb", [verb for verb in cli.VERBS if verb != "version"])
def test_every_verb_has_examples_with_a_comment_each(verb: str) -> None:
    command = cli.group.get_command(None, verb)  # type: ignore[arg-type]
    assert command is not None
    lines = [line.strip() for line in (command.help or "").partition("Examples:")[2].splitlines() if line.strip()]
    assert any(line.startswith("kubectl gpushare ") for line in lines)
    assert sum(line.startswith("# ") for line in lines) >= 2
