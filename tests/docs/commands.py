"""Checks commands in documents: the program, its files and its flags exist. A line may have several programs."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final

import click
import yaml

from deviceplugin import agent_settings
from gpushare.config import flags
from kubectl_gpushare import cli
from lab.__main__ import main as lab_group
from tests.docs.pages import ROOT
from webhook import webhook_settings

_SEPARATORS: Final = {"|", "||", "&&", ";", "&"}
_TARGET: Final = re.compile(r"^([a-z-]+):.*## ", re.MULTILINE)
_OPTION: Final = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
_PATH: Final = re.compile(r"(config|docs|lab|bench|tests|interposer|simgpu)/[\w./-]+")
# test_snippets checks kubectl's verbs and flags with the real kubectl.
_KUBECTL_NAMED_BEFORE: Final = {"-n": 2, "--namespace": 2, "--context": 2, "--as": 2}


def parts(line: str) -> list[list[str]]:
    """Return the simple commands of a line, without assignments and redirections."""
    inner = re.fullmatch(r'eval "\$\((.*)\)"', line)
    if inner:
        return parts(inner.group(1))
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    commands: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        if word in _SEPARATORS:
            commands.append([])
        elif set(word) <= set("<>"):
            next(words, "")
        elif commands[-1] or "=" not in word.partition("/")[0]:
            commands[-1].append(word)
    return [command for command in commands if command]


def wrong(words: Sequence[str]) -> str:
    """Return what is wrong with a command, as a sentence; empty if it is valid."""
    program, *rest = words
    judge = PROGRAMS.get(program)
    if judge is None:
        return f"no check exists for {program}"
    for path in (match.group() for word in rest for match in [_PATH.search(word)] if match):
        if not any(ROOT.glob(path.rstrip("/"))):
            return f"{path} is not there"
    return judge(rest)


def kubectl_part(words: Sequence[str]) -> list[str]:
    """Return a kubectl command from its verb on, without the flags before it."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        del rest[: _KUBECTL_NAMED_BEFORE.get(rest[0], 1)]
    return rest


def _kubectl(words: Sequence[str]) -> str:
    rest = kubectl_part(words)
    return _plugin(rest[1:]) if rest and rest[0] == "gpushare" else ""


def _plugin(words: Sequence[str]) -> str:
    if not words:
        return ""
    command: click.Command = cli.group
    rest = list(words)
    while isinstance(command, click.Group):
        subcommand = command.get_command(click.Context(command), rest[0]) if rest else None
        if subcommand is None:
            return f"kubectl gpushare has no {' '.join(rest[:1])}"
        command, rest = subcommand, rest[1:]
    try:
        command.make_context(command.name, rest, resilient_parsing=False)
    except click.exceptions.Exit:
        return ""  # --help
    except click.ClickException as error:
        return error.format_message()
    return ""


def _make(words: Sequence[str]) -> str:
    if words[:1] == ["-C"]:
        return "" if (ROOT / words[1] / "Makefile").exists() else f"{words[1]} has no Makefile"
    known = set(_TARGET.findall((ROOT / "Makefile").read_text()))
    return "; ".join(f"make has no target {word}" for word in words if "=" not in word and word not in known)


def _uv(words: Sequence[str]) -> str:
    """Accept only the commands in the table of docs/plugin.md."""
    command = " ".join(("uv", *words))
    return (
        "" if f"`{command}`" in (ROOT / "docs" / "plugin.md").read_text() else f"docs/plugin.md does not have {command}"
    )


def _python(words: Sequence[str]) -> str:
    rest = list(words)
    if rest and rest[0] == "-m":
        if rest[1] == "pytest":
            return _pytest(rest[2:])
        if importlib.util.find_spec(rest[1]) is None:
            return f"there is no module {rest[1]}"
        return _unknown(rest[2:], options(rest[1]))
    return "" if rest and (ROOT / rest[0]).is_file() else f"there is no program {' '.join(rest)}"


def _pytest(words: Sequence[str]) -> str:
    taken = {"-c", "-k", "-m", "-n"}
    paths = [
        word
        for before, word in zip(("", *words), words, strict=False)
        if not word.startswith("-") and before not in taken
    ]
    return "; ".join(f"{path} is not there" for path in paths if not (ROOT / path).exists())


def _install(words: Sequence[str]) -> str:
    return _unknown(words, options("./install.sh"))


def _unknown(words: Sequence[str], known: frozenset[str]) -> str:
    used_flags = [word.partition("=")[0] for word in words if word.startswith("-")]
    return "; ".join(f"{flag} is unknown" for flag in used_flags if flag not in known)


@functools.cache
def options(program: str) -> frozenset[str]:
    """Return the flags in a program's help."""
    if program == "webhook":
        return _in(_printed(lambda: webhook_settings.parse(["--help"], {})))
    if program == "deviceplugin":
        nvidias = {option for flag in flags.FLAGS for option in flag.options}
        return _in(_printed(lambda: agent_settings.parse(["--help"], {}))) | nvidias
    if program == "lab":
        contexts = [click.Context(command) for command in (lab_group, *lab_group.commands.values())]
        return _in("".join(context.command.get_help(context) for context in contexts))
    command = [program] if program.startswith("./") else [sys.executable, "-m", program]
    done = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return _in(done.stdout)


@functools.cache
def plugins_options() -> frozenset[str]:
    """Return the flags of all verbs of the plugin."""
    names: set[str] = set()
    for verb in cli.VERBS:
        command = cli.group.get_command(click.Context(cli.group), verb)
        assert command is not None
        for subcommand in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
            for parameter in subcommand.get_params(click.Context(subcommand)):
                names |= {*parameter.opts, *parameter.secondary_opts}
    return frozenset(names)


def _printed(call: Callable[[], object]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        call()
    return said.getvalue()


def _in(text: str) -> frozenset[str]:
    return frozenset(_OPTION.findall(text))


def _built_from(source: str) -> Callable[[Sequence[str]], str]:
    """Check a C program's flags against its sources."""
    return lambda words: _unknown(words, _in((ROOT / source).read_text()))


def _helm(words: Sequence[str]) -> str:
    """Check that the chart and the values that are set exist. Helm's flags are checked where a test installs the
    chart.
    """
    chart = ROOT / "charts" / "gpushare"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    wrong = [f"{word} is not there" for word in words if "/" in word and "=" not in word and not (ROOT / word).is_dir()]
    for before, word in itertools.pairwise(words):
        section = values
        for key in word.partition("=")[0].split(".") if before == "--set" else []:
            if key not in section:
                wrong.append(f"{word} is not a value of the chart")
                break
            section = section[key]
    return "; ".join(wrong)


def _anything(_words: Sequence[str]) -> str:
    return ""


PROGRAMS: Final[dict[str, Callable[[Sequence[str]], str]]] = {
    "kubectl": _kubectl,
    "helm": _helm,
    "uv": _uv,
    "make": _make,
    "./install.sh": _install,
    ".venv/bin/pytest": _pytest,
    "pytest": _pytest,
    "python": _python,
    "python3": _python,
    ".venv/bin/python": _python,
    "build/simgpu/simgpu": _built_from("simgpu/command/main.c"),
    "build/gpushare-probe": _built_from("lab/image/probe.c"),
    "export": _anything,
    "curl": _anything,
    "cat": _anything,
    "grep": _anything,
    "base64": _anything,
    "openssl": _anything,
    "ctr": _anything,
    "skopeo": _anything,
    "buildah": _anything,
    "git": _anything,
}
