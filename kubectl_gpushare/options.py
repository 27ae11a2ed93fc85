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


_REPEATED = "as-group"  # the only one that may occur more than once


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
    """Take the options out of click's parameters `params`. Raises UsageError."""
    flags: dict[str, tuple[str, ...]] = {}
    for name in CONNECTION:
        value = params.pop(_parameter(name), None) or ()
        flags[name] = value if isinstance(value, tuple) else (value,)
    own = {
        field.name: params.pop(field.name)
        for field in dataclasses.fields(Options)
        if params.get(field.name) is not None
    }
    for field in dataclasses.fields(Options):
        params.pop(field.name, None)
    chosen = Options(connection=_connection_flags(flags), **own)
    if chosen.namespace and not is_name(chosen.namespace):
        raise click.UsageError(f'-n "{chosen.namespace}" cannot be the name of a namespace')
    return chosen


def _connection_flags(values: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return kubectl's flags from the values of each; the last value counts for a flag that cannot be repeated."""
    return tuple(
        f"--{name}={value}"
        for name, given in values.items()
        for value in (given if name == _REPEATED else given[-1:])
        if value
    )


def is_name(text: str) -> bool:
    """Whether this can be an object's name: anything else would lead to another path on the API server."""
    plain = text.replace("-", "").replace(".", "")
    return plain.isascii() and plain.isalnum() and text[0] not in "-." and text[-1] not in "-."


def connection(complete_context: Completer | None = None) -> Callable[[_Function], _Function]:
    def add(function: _Function) -> _Function:
        for name, text in reversed(tuple(CONNECTION.items())):
            settings: dict[str, Any] = {"help": text, "metavar": "TEXT"}
            if name == _REPEATED:
                settings["multiple"] = True
            if name == "kubeconfig":
                settings |= {"type": click.Path(), "metavar": "FILE"}
            if name == "context" and complete_context:
                settings["shell_complete"] = complete_context
            function = click.option(_parameter(name), f"--{name}", **settings)(function)
        return click.option(
            "files",
            "--from",
            multiple=True,
            type=click.Path(allow_dash=True),
            metavar="FILE",
            help="Read GPUNodes and pods from a saved file, JSON or YAML, instead of the cluster; - is standard input; "
            "may be repeated",
        )(function)

    return add


def _parameter(flag: str) -> str:
    return f"{flag.replace('-', '_')}_user" if flag == "as" else flag.replace("-", "_")


def namespaced(complete: Completer | None = None, *, all_namespaces: bool = True) -> Callable[[_Function], _Function]:
    def add(function: _Function) -> _Function:
        if all_namespaces:
            function = click.option("all_namespaces", "-A", "--all-namespaces", is_flag=True, help="All namespaces")(
                function
            )
        return click.option(
            "namespace",
            "-n",
            "--namespace",
            metavar="TEXT",
            shell_complete=complete,
            help="The namespace",
        )(function)

    return add


def selector(function: _Function) -> _Function:
    return click.option(
        "selector",
        "-l",
        "--selector",
        metavar="TEXT",
        help="Label selector for Nodes, or for pods where those are listed, such as key=value,key2 in (a,b)",
    )(function)


def printed(formats: Sequence[str]) -> Callable[[_Function], _Function]:
    def add(function: _Function) -> _Function:
        function = click.option(
            "color",
            "--color",
            type=click.Choice(("auto", "always", "never")),
            default="auto",
            help="Use colours: on a terminal (auto), always or never",
        )(function)
        return click.option(
            "output",
            "-o",
            "--output",
            type=_Format(tuple(formats)),
            metavar="FORMAT",
            help=f"Output format: {', '.join(formats)}",
        )(function)

    return add


class _Format(_Choice):
    """An output format; an error names the formats that the verb has."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        if value in self.choices:
            return value
        *others, last = self.choices
        no_list = ", as there is no list of objects whose names it could print" if value == "name" else ""
        raise click.UsageError(f'invalid --output "{value}"{no_list}: must be {", ".join(others)} or {last}', ctx)


def listed(sort_keys: Sequence[str]) -> Callable[[_Function], _Function]:
    def add(function: _Function) -> _Function:
        function = click.option(
            "watch",
            "-w",
            "--watch",
            is_flag=True,
            help="Update on every change until interrupted; q quits on a terminal",
        )(function)
        function = click.option(
            "sort_by",
            "--sort-by",
            type=click.Choice(tuple(sort_keys)),
            metavar="COLUMN",
            help=f"Sort by a column, numbers largest first: {', '.join(sort_keys)}",
        )(function)
        return click.option("no_headers", "--no-headers", is_flag=True, help="Print rows only: no headers, no totals")(
            function
        )

    return add
