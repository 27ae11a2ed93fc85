"""Early: starts the kubectl request that a verb is sure to make while Python still imports the rest of the plugin.

Imports and parsing take about as long as kubectl's answer, so running both at once halves the waiting time. Nothing is
decided here: a command line that is not fully understood starts nothing, and a started process is used only for exactly
the same kubectl command.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence

from gpushare import contract

# kubectl's own flags that every verb passes on, in this order; only REPEATED may occur more than once.
CONNECTION = ("context", "kubeconfig", "cluster", "user", "as", "as-group", "request-timeout")
REPEATED = "as-group"

# verb -> its flags that take a value (VALUES) and that take none (SWITCHES). A test compares them with the verb's own.
_PRINTED = frozenset({"-o", "--output", "--color"})
_LABELS, _NAMESPACE = frozenset({"-l", "--selector"}), frozenset({"-n", "--namespace"})
_SIZE = frozenset({"--request", "--memory", "--gpus"})
_EVERYWHERE = frozenset({"-A", "--all-namespaces"})
VALUES: Mapping[str, frozenset[str]] = {
    "top": _PRINTED | _LABELS | _NAMESPACE | {"--sort-by"},
    "audit": _PRINTED | _LABELS,
    "rightsize": _PRINTED | _LABELS | _NAMESPACE | {"--margin", "--min-observed", "--metrics"},
    "why": _PRINTED | _NAMESPACE,
    "fit": _PRINTED
    | _NAMESPACE
    | _SIZE
    | {"-f", "--filename", "--limit", "--model", "--min-memory", "--policy", "--count"},
    "defrag": _PRINTED | _NAMESPACE | _SIZE | {"--moves", "--timeout"},
}
SWITCHES: Mapping[str, frozenset[str]] = {
    "top": _EVERYWHERE | {"-w", "--watch", "--no-headers", "--usage", "--no-usage"},
    "audit": _EVERYWHERE | {"--no-headers"},
    "rightsize": _EVERYWHERE | {"--no-headers"},
    "why": frozenset(),
    "fit": frozenset(),
    "defrag": frozenset({"--apply", "--cpu-pods", "--empty-nodes"}),
}

_started: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}


def begin(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start the kubectl request that the command line `words` will certainly make, if it can be predicted."""
    asked = command(words)
    if asked is None:
        return
    whole = (program(environment), *asked)
    with contextlib.suppress(OSError):  # `Kubectl` reports a kubectl that cannot be run
        _started[whole] = start(whole)


def take(whole: tuple[str, ...]) -> subprocess.Popen[bytes] | None:
    """The process that was started for this command, or None; the caller owns it from now on."""
    return _started.pop(whole, None)


def end() -> None:
    """Kill the processes that were not taken."""
    while _started:
        process = _started.popitem()[1]
        process.kill()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()  # not read to its end: a login that kubectl has started may hold it open for minutes
        process.wait()


def program(environment: Mapping[str, str]) -> str:
    """The kubectl that called us as its plugin (it says so in KUBECTL_PATH), else the one on PATH."""
    return environment.get("KUBECTL_PATH") or "kubectl"


def start(whole: Sequence[str], stdin: int | None = None) -> subprocess.Popen[bytes]:
    """Start a command with its standard output and standard error as pipes."""
    return subprocess.Popen(whole, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def connection(values: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """kubectl's flags, from the values of each; the last value counts for a flag that cannot be repeated."""
    return tuple(
        f"--{name}={value}"
        for name in CONNECTION
        for value in (values.get(name, ()) if name == REPEATED else values.get(name, ())[-1:])
        if value
    )


def command(words: Sequence[str]) -> tuple[str, ...] | None:
    """Return the arguments of the first kubectl command that this command line needs; None if unpredictable."""
    verb, *rest = words or ("",)
    if verb not in VALUES:
        return None
    values: dict[str, list[str]] = {}
    left = iter(rest)
    for word in left:
        flag, equals, value = word.partition("=")
        if not word.startswith("-") or (flag in SWITCHES[verb] and not equals):
            continue
        if flag in VALUES[verb] or flag.removeprefix("--") in CONNECTION:
            if equals and not flag.startswith("--"):
                return None
            values.setdefault(flag.lstrip("-"), []).append(value if equals else next(left, ""))
        else:
            return None
    return "get", "--raw", contract.GPUNODE_PATH, *connection(values)
