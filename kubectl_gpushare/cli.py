"""The command line: verbs that are imported when used, and errors as kubectl shows them."""

from __future__ import annotations

import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence

import click

import gpushare
from gpushare import printable
from kubectl_gpushare import plugin_errors

PROGRAM = "kubectl gpushare"
# The verbs that plan choose by arrays, as the webhook does; krew's archive has no compiled code, and so no numpy.
_WITHOUT_NUMPY = "this verb needs numpy, which {python} lacks: `{python} -m pip install numpy` installs it"

# Raised where a hand-written object has a value of the wrong type, or lacks a field.
_SHAPE_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_SAVE_AGAIN = "save it again with `kubectl get gpunodes,nodes,pods -A -o yaml > FILE`"

# verb -> its one-line help; the command itself is `kubectl_gpushare.commands.VERB.command`, or in `_ELSEWHERE`.
VERBS: Mapping[str, str] = {
    "top": "Show what is allocated, used and free, one line per GPU, node or pod",
    "ui": "Show every GPU, the queue and what fits on one page in your browser",
    "describe": "Show the shares of a node or GPU, or the share of a pod and why it is there",
    "why": "Explain why a pod waits and what would help, or why it is on this GPU",
    "fit": "Check whether a pod fits now, where it would go, and how many more would fit",
    "defrag": "Plan or apply the fewest moves that make room for waiting pods, or for a share",
    "simulate": "Simulate how pods from files or a trace would be placed, as a table and a plot",
    "resize": "Give a running pod more or less compute and memory of the GPUs it is on",
    "cordon": "Keep new pods off a GPU",
    "uncordon": "Allow new pods on a GPU again",
    "rightsize": "Compare the requests of shares with their peak usage, and suggest sizes",
    "audit": "Prove that limits are in force, and name processes without one",
    "check": "Check whether a cluster meets the requirements of gpushare, with reasons and remedies",
    "migrate": "Rewrite requests of HAMi, KAI and other sharers in gpushare's syntax",
    "config": "Check node configurations, and change which one a node follows",
    "completion": "Let kubectl complete verbs, flags and names in your shell",
    "version": "Print the version of the plugin",
}
_ELSEWHERE: Mapping[str, tuple[str, str]] = {"cordon": ("cordoning", "cordon"), "uncordon": ("cordoning", "uncordon")}


class Verbs(click.Group):
    """A group whose commands are modules: a verb costs nothing until it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        module, name = _ELSEWHERE.get(cmd_name, (f"commands.{cmd_name}", "command"))
        command = getattr(importlib.import_module(f"kubectl_gpushare.{module}"), name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in VERBS and not name.startswith("-") and not ctx.resilient_parsing:
            import difflib

            near = difflib.get_close_matches(name, VERBS, 1)
            ctx.fail(f"no such command '{name}'" + (f": did you mean '{near[0]}'?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.pass_context
def group(context: click.Context) -> None:
    """Show which pods share which GPU, with which amounts, and what else fits.

    Reads GPUNodes, and pods if a verb needs them, through kubectl, so it works with every kubeconfig. Flags come after
    the verb. With --from FILE it reads saved objects and needs no cluster.

    The exit code is 0 if all is done or the answer is yes, 1 for any error, 2 if the answer is no, and 130 when
    interrupted. The help of each verb says when the answer is no.

    \b
    Examples:
      # Allocated and free capacity of each GPU
      kubectl gpushare top
    \b
      # The shares of a GPU
      kubectl gpushare describe gpu gpu-node-1/0
    \b
      # Why a pod waits
      kubectl gpushare describe pod trainer
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@group.command(short_help="Print the version of the plugin")
def version() -> None:
    """Print the version of the plugin."""
    print(f"kubectl-gpushare v{gpushare.__version__}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the plugin; return the exit code: 0, 1 for any error, 130 when interrupted, or what the verb says."""
    _prepare()
    try:
        result = group.main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        hint = ""
        if isinstance(error, click.NoSuchOption) and error.ctx is not None and error.ctx.parent is None:
            hint = f": flags come after the verb, as in `{PROGRAM} top {error.option_name} …`"
        _complain(f"{sentence_of(error)}{hint}")
        if isinstance(error, click.UsageError) and error.ctx is not None:
            print(f"See '{error.ctx.command_path} --help' for usage.", file=sys.stderr)
        return 1
    except plugin_errors.PluginError as error:
        _complain(str(error))
        return 1
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        _complain(_WITHOUT_NUMPY.format(python=sys.executable))
        return 1
    except (KeyboardInterrupt, click.Abort):
        return 130
    except OSError as error:  # a file that the user named raises `FileError` instead
        if not isinstance(error, BrokenPipeError):  # a reader that stops early, such as `head`, is no error
            _complain(f"the output cannot be written: {error.strerror or error}")
        # Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except _SHAPE_ERRORS as error:
        problem = _file_problem(sys.argv[1:] if arguments is None else arguments, error)
        if not problem:  # the API server's objects have the right shape, so this is a bug
            raise
        _complain(problem)
        return 1
    return result if isinstance(result, int) else 0


def sentence_of(error: click.ClickException) -> str:
    said = error.format_message()
    first = said[:1] if said[:2].isupper() else said[:1].lower()  # NAME stays as it is
    return f"{first}{said[1:].removesuffix('.')}"


def interrupt_on_any_signal() -> None:
    """Make SIGTERM and SIGHUP (a closed terminal) raise `KeyboardInterrupt`, as SIGINT does, so that clean-up runs."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)


def _file_problem(words: Sequence[str], error: Exception) -> str:
    problems = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if match := re.fullmatch(r"(--from|--filename|-f)=?(.*)", word):
            name = match[2] or following
            check = f"check it with `kubectl apply --dry-run=server -f {name}`"
            remedy = _SAVE_AGAIN if match[1] == "--from" else check
            what = f"no field {error}" if isinstance(error, KeyError) else str(error)
            problems.append(f"{name} is not what kubectl prints ({what}): {remedy}")
    return "; or ".join(problems)


def _prepare() -> None:
    """Let standard output and standard error accept any character: names and messages may contain any."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the shell has closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - for as long as we run
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for characters that the locale lacks, and lone surrogates


def _complain(sentence: str) -> None:
    # The sentence may quote text from the cluster: keep it on one line and without control characters.
    print(f"error: {printable.replaced(' '.join(sentence.split()))}", file=sys.stderr)
