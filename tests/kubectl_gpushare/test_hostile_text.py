"""Names, models and messages come from other users: no terminal or spreadsheet executes anything in them."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from kubectl_gpushare import cli
from kubectl_gpushare.output import printing
from kubectl_gpushare.output.values import Document, Table, list_document
from tests import builders
from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.conftest import Ended, Plugin

EVIL = "\x00\x07\x08\t\r\n\x1b[2J\x7f\x85\x9b31m\u202a\u202e\u2028\u2029\u2066\u2069"
FORMULA = "=HYPERLINK(A1)"

# Fields that are not free text, or the object would be invalid.
_KEPT = re.compile(
    r"^(kind|apiVersion|namespace|mode|status|type|phase|.*(Time|Timestamp|Until|Capability)|gpushare\.io/.*)$"
)
# Each command is run with each of its formats.
_COMMANDS = (
    *("top gpus", "top nodes", "top pods -A", "describe node", "describe gpu", "describe pod -A", "describe node nope"),
    *("describe gpu NODE/0", "why POD", "fit --request 0.5", "fit --request 1 --gpus 9"),
    *("defrag", "defrag --request 1 --gpus 2", "rightsize -A", "config show", "config show NODE", "check", "audit"),
    *("resize POD --request 0.1", "cordon NODE --dry-run", "uncordon gpu NODE/0 --dry-run", "completion bash"),
    "config label NODE exclusive",
)
_OTHERS_FILES = {
    "simulate": "test_names_of_simulated_pods_print_no_control_characters",
    "config validate": "test_configurations_print_no_control_characters",
    "config diff": "test_configurations_print_no_control_characters",
    "migrate": "test_migrated_manifests_print_no_control_characters",
    "config set": "prints what config validate and config diff print",
    "version": "prints what was built",
    "ui": "tests/kubectl_gpushare/ui/test_browser_states.py has a page with hostile names",
}


def _leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    with click.Context(command) as context:
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _leaves(child, (*path, name))


_FORMATS = {
    path: [form for param in command.params if param.name == "output" for form in getattr(param.type, "choices", ())]
    for path, command in _leaves(cli.group)
}


def _verb(words: str) -> str:
    return max((verb for verb in _FORMATS if f"{words} ".startswith(f"{verb} ")), key=len)


def _all(commands: Iterable[str]) -> Iterator[str]:
    for words in commands:
        yield words
        yield from (f"{words} -o {form}" for form in _FORMATS[_verb(words)])


def _poisoned(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _poisoned(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [_poisoned(part, key) for part in value]
    return f"{FORMULA}{value}{EVIL}" if isinstance(value, str) and not _KEPT.match(key) else value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(part)


@pytest.fixture
def run(plugin: Plugin, tmp_path: Path) -> Callable[[str], Ended]:
    """Run a command on the sample cluster with hostile text in every free field; NODE and POD are names in it."""
    path = sample.save(tmp_path / "cluster.json")
    path.write_text(json.dumps(_poisoned(json.loads(path.read_text()))))
    names = {"NODE": _poisoned("gpu-1"), "NODE/0": f"{_poisoned('gpu-1')}/0", "POD": _poisoned("trainer")}

    def command(words: str) -> Ended:
        namespace = ("-n", "ml") if "POD" in words else ()
        return plugin(*(names.get(word, word) for word in words.split()), *namespace, "--from", path)

    return command


def test_every_command_is_tested_with_hostile_text() -> None:
    asked = {_verb(words) for words in _COMMANDS}
    assert asked | set(_OTHERS_FILES) == set(_FORMATS)
    assert not asked & set(_OTHERS_FILES)


@pytest.mark.parametrize("words", list(_all(_COMMANDS)))
def test_output_has_no_control_characters(run: Callable[[str], Ended], words: str) -> None:
    ended = run(words)
    assert ended.out + ended.err
    for stream in (ended.out, ended.err):
        assert [char for char in set(stream) if not char.isprintable()] in ([], ["\n"])


def test_kubectls_messages_have_no_control_characters(plugin: Plugin, fake_kubectl: Callable[[str], str]) -> None:
    said = r"Warning: policy\tsays \033[2J\302\233 and \342\200\256"
    kubectl = fake_kubectl(f'printf \'{said}\\n\' >&2; echo \'{{"kind": "GPUNodeList", "items": []}}\'')
    ended = plugin("top", KUBECTL_PATH=kubectl)
    assert "policy says �[2J� and �\n" in ended.err


def test_configurations_print_no_control_characters(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "configmap.json"
    entries = {f"bad{EVIL}": "version: v9", f"good{EVIL}": "version: v1"}
    path.write_text(json.dumps({"kind": "ConfigMap", "data": entries}))
    cluster = sample.save(tmp_path / "cluster.json")
    for words in (
        ("config", "validate", path),
        ("config", "diff", "--node", "gpu-1", "-f", path, "--entry", "nope", "--from", cluster),
    ):
        ended = plugin(*words)
        assert "[2J" in ended.out + ended.err
        for stream in (ended.out, ended.err):
            assert stream.replace("\n", "").isprintable()


def test_names_of_simulated_pods_print_no_control_characters(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_text(json.dumps(_poisoned(builders.pod("trainer", request="0.5")) | {"apiVersion": "v1"}))
    for form in ("", *(f"-o={form}" for form in _FORMATS["simulate"])):
        ended = plugin("simulate", "-f", path, "--nodes", "1x4", *filter(None, [form]))
        assert ended.out + ended.err
        for stream in (ended.out, ended.err):
            assert stream.replace("\n", "").isprintable()


def test_migrated_manifests_print_no_control_characters(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    pods = [builders.pod(), builders.pod()]
    pods[0]["metadata"]["annotations"] = {"gpu-memory": "2000"}
    pods[1]["metadata"]["annotations"] = {f"nvidia.com/container.{EVIL}.gpu-memory.limit": "8Gi"}
    poisoned = json.loads(json.dumps([_poisoned(each) for each in pods]))
    poisoned[0]["metadata"]["annotations"] = {"gpu-memory": "2000", EVIL: EVIL}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": poisoned}))
    for form in ("", *(f"--output={form}" for form in _FORMATS["migrate"])):
        ended = plugin("migrate", "-f", path, *filter(None, [form]))
        assert ended.out
        assert ended.err
        for stream in (ended.out, ended.err):
            assert stream.replace("\n", "").isprintable()


@pytest.mark.parametrize("words", ["top gpus", "top nodes", "top pods -A", "describe pod -A", "config show"])
def test_json_and_yaml_preserve_the_text(run: Callable[[str], Ended], words: str) -> None:
    as_json, as_yaml = (run(f"{words} -o {form}").out for form in ("json", "yaml"))
    assert (document := json.loads(as_json)) == yaml.safe_load(as_yaml)
    assert any(EVIL in text for text in _texts(document))


@pytest.mark.parametrize("words", ["top gpus", "top nodes", "top pods -A", "rightsize -A", "audit"])
def test_csv_has_no_formulas(run: Callable[[str], Ended], words: str) -> None:
    ended = run(f"{words} -o csv")
    cells = [cell for row in csv.reader(io.StringIO(ended.out)) for cell in row]
    assert not [cell for cell in cells if cell.startswith(tuple("=+-@＝＋－＠"))]


@dataclasses.dataclass
class Row:
    """A listing of one row."""

    item: Mapping[str, object]

    def table(self) -> Table:
        return Table((), ())

    def document(self) -> Document:
        return list_document("L", [self.item])

    def names(self) -> Iterator[str]:
        yield from ()


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+1+1", "'+1+1"),
        ("-1\u202e+cmd", "'-1�+cmd"),
        ("\t=1", "�=1"),
        ("＝1+1", "'＝1+1"),
        ("-", "-"),
        ("-0.5", "-0.5"),
        ("+5", "+5"),
        (-5, "-5"),
        (-0.25, "-0.25"),
        (True, "true"),
        (None, ""),
        (["=1+1", 5], '"\'=1+1,5"'),
        ("'quoted", "'quoted"),
    ],
)
def test_csv_cells_are_text_or_numbers(value: object, cell: str) -> None:
    stream = io.StringIO()
    printing.WRITERS["csv"](Row({"=name": value}), stream)
    assert stream.getvalue().splitlines() == ["'=name", cell or '""']
