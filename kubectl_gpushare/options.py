"""The flags of every verb. kubectl passes none of its own on, so a plugin has to define them, after the verb."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kubectl_gpushare import kubectl

LISTS = ("table", "wide", "json", "yaml", "csv", "name")  # formats that a list can be printed in

if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:
    _Choice = click.Choice  # not generic before click 8.2

_Function = TypeVar("_Function", bound=Callable[..., Any])
Completer = Callable[[click.Context, click.Parameter, str], list[Any]]

# Passed on to kubectl as they are: flag -> help.
CONNECTION: Mapping[str, str] = {
    "context": "The name of the kubeconfig context to use",
    "kubeconfig": "Path to the kubeconfig file",
    "cluster": "The name of the kubeconfig cluster to use",
    "user": "The name of the kubeconfig user to use",
    "as": "Username to impersonate",
    "as-group": "Group to impersonate; may be repeated",
    "request-timeout": "Time limit of one request to the server, such as 5s",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The values of the common flags; a flag that a verb lacks keeps its default."""

    connection: tuple[str, ...] = ()  # kubectl's own flags
    files: tuple[str, ...] = ()
    namespace: str = ""  # empty: the context's
    all_namespaces: bool = False
    selector: str = ""
    output: str = ""  # empty: for people
    no_headers: bool = False
    sort_by: str = ""
    watch: bool = False
    color: str = "auto"

    @property
    def wide(self) -> bool:
        return self.output == "wide"

    def kubectl(self) -> kubectl.Kubectl:
        return kubectl.Kubectl.from_environment(self.connection, os.environ)


def collect(params: dict[str, Any]) -> Options:
    flags: list[str] = []
    for name in CONNECTION:
        value = params.pop(_parameter(name), None) or ()
        flags += [f"--{name}={text}" for text in (value if isinstance(value, tuple) else (value,)) if text]
    values = {field.name: params.pop(field.name, None) for field in dataclasses.fields(Options)}
    own = {name: value for name, value in values.items() if value is not None}
    chosen = Options(**{**own, "connection": tuple(flags)})
    if chosen.namespace and not is_name(chosen.namespace):
        raise click.UsageError(f'-n "{chosen.namespace}" cannot be the name of a namespace')
    return chosen


def is_name(text: str) -> bool:
    """Whether this can be an object's name: anything else would lead to another path on the API server."""
    plain = text.replace("-", "").replace(".", "")
    return plain.isascii() and plain.isalnum() and text[0] not in "-." and text[-1] not in "-."


def _together(*flags: Callable[[Any], Any]) -> Callable[[_Function], _Function]:
    def add(function: _Function) -> _Function:
        for flag in reversed(flags):
            function = flag(function)
        return function

    return add


def file(*names: str, **settings: Any) -> Callable[[_Function], _Function]:
    return click.option(*names, type=click.Path(allow_dash=True), metavar="FILE", **settings)


def connection(complete_context: Completer) -> Callable[[_Function], _Function]:
    special: Mapping[str, Mapping[str, Any]] = {
        "context": {"shell_complete": complete_context},
        "kubeconfig": {"type": click.Path(), "metavar": "FILE"},
        "as-group": {"multiple": True},
    }
    files = file(
        "files",
        "--from",
        multiple=True,
        help="Read GPUNodes and pods from a saved file, JSON or YAML, instead of the cluster; - is standard input; "
        "may be repeated",
    )
    return _together(
        files,
        *(
            click.option(_parameter(name), f"--{name}", **{"help": text, "metavar": "TEXT", **special.get(name, {})})
            for name, text in CONNECTION.items()
        ),
    )


def _parameter(flag: str) -> str:
    return f"{flag}_user" if flag == "as" else flag.replace("-", "_")  # `as` is a keyword


def timeout(seconds: float, sentence: str) -> Callable[[_Function], _Function]:
    limits: dict[str, Any] = {"type": click.FloatRange(1, 3600), "default": seconds, "metavar": "SECONDS"}
    return click.option("--timeout", "timeout_seconds", help=f"{sentence} (default: {seconds:g})", **limits)


def namespaced(complete: Completer, *, all_namespaces: bool = True) -> Callable[[_Function], _Function]:
    one = click.option("-n", "--namespace", metavar="TEXT", shell_complete=complete, help="The namespace")
    every = click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces")
    return _together(one, every) if all_namespaces else one


selector = click.option(
    "-l",
    "--selector",
    metavar="TEXT",
    help="Label selector for Nodes, or for pods where those are listed, such as key=value,key2 in (a,b)",
)


def printed(formats: Sequence[str]) -> Callable[[_Function], _Function]:
    return _together(
        click.option(
            "-o",
            "--output",
            type=_Format(tuple(formats)),
            metavar="FORMAT",
            help=f"Output format: {', '.join(formats)}",
        ),
        click.option(
            "--color",
            type=click.Choice(("auto", "always", "never")),
            default="auto",
            help="Use colours: on a terminal (auto), always or never",
        ),
    )


class _Format(_Choice):
    """An output format; an error names the formats that the verb has."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        if value in self.choices:
            return value
        *others, last = self.choices
        no_list = ", as there is no list of objects whose names it could print" if value == "name" else ""
        raise click.UsageError(f'invalid --output "{value}"{no_list}: must be {", ".join(others)} or {last}', ctx)


def listed(sort_keys: Sequence[str]) -> Callable[[_Function], _Function]:
    return _together(
        click.option("--no-headers", is_flag=True, help="Print rows only: no headers, no totals"),
        click.option(
            "--sort-by",
            type=click.Choice(tuple(sort_keys)),
            metavar="COLUMN",
            help=f"Sort by a column, numbers largest first: {', '.join(sort_keys)}",
        ),
        click.option(
            "-w", "--watch", is_flag=True, help="Update on every change until interrupted; q quits on a terminal"
        ),
    )
