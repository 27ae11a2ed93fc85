"""Makes the pages of this folder: one for each verb, in Markdown, made from what `--help` is made of.

Run: `make docs`; a test says when it is time to.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from kubectl_gpushare import cli, options

_BLOCK = "\b"  # click's mark of a paragraph that is not wrapped
_WIDTH = 100
_KUBECTL = frozenset(f"--{name}" for name in options.CONNECTION)

# verb -> pictures of docs/images, each with what it shows
PICTURES: Mapping[str, Mapping[str, str]] = {
    "top": {
        "top": "A line per GPU, with bars and totals",
        "top-pods": "A line per pod",
        "top-i": "The tree of `top -i`",
    },
    "describe": {"describe": "One GPU with its tenants"},
    "why": {"why": "Why a pod waits, and what would help"},
    "fit": {"fit": "Where six shares would go"},
    "simulate": {"simulate": "Forty half GPUs come to sixteen GPUs"},
}


SCREENSHOTS: Mapping[str, Mapping[str, str]] = {
    "ui": {"ui": "A tile per GPU, and a waiting pod with the GPU that nearly fits"}
}


def pages() -> dict[str, str]:
    """File name → text, for every verb, and README.md with the list of them."""
    context = click.Context(cli.group, info_name=cli.PROGRAM)
    texts = {"README.md": _index(context)}
    for verb in cli.VERBS:
        command = cli.group.get_command(context, verb)
        assert command is not None  # noqa: S101 - it is listed
        texts[f"{verb}.md"] = _page(verb, command, context)
    return texts


def _index(context: click.Context) -> str:
    verbs = [f"| [`{verb}`]({verb}.md) | {text} |" for verb, text in cli.VERBS.items()]
    intro = inspect.cleandoc(cli.group.help or "").partition(_BLOCK)[0]
    top = cli.group.get_command(context, "top")  # one of those that have all flags of kubectl
    assert top is not None  # noqa: S101 - it is listed
    flags = [row for flag, row in _flags(top, click.Context(top, parent=context)) if flag in _KUBECTL]
    parts = [f"# {cli.PROGRAM}", *_paragraphs(intro), _table("verb", verbs)]
    return "\n\n".join([*parts, "## Flags of kubectl", _table("flag", flags)]) + "\n"


def _page(verb: str, command: click.Command, parent: click.Context) -> str:
    context = click.Context(command, info_name=verb, parent=parent)
    pictures = [f"![{text}](../images/{name}.svg)" for name, text in PICTURES.get(verb, {}).items()]
    pictures += [f"![{text}](../images/{name}.png)" for name, text in SCREENSHOTS.get(verb, {}).items()]
    parts = [f"# {cli.PROGRAM} {verb}", *pictures, *_body(command, context, "##")]
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        within = click.Context(inner, info_name=name, parent=context)
        parts += [f"## {cli.PROGRAM} {verb} {name}", *_body(inner, within, "###")]
    return "\n\n".join(parts) + "\n"


def _body(command: click.Command, context: click.Context, heading: str) -> list[str]:
    usage = command.get_usage(context).removeprefix("Usage: ")
    text, _, examples = inspect.cleandoc(command.help or "").partition("Examples:")
    title, _, rest = text.replace(_BLOCK, "").strip().partition("\n")
    parts = [title, f"```\n{' '.join(usage.split())}\n```", *_paragraphs(rest)]
    if examples.strip():
        shown = re.sub(r"\n{2,}", "\n\n", inspect.cleandoc(examples.replace(f"{_BLOCK}\n", "\n"))).strip()
        lines = "\n".join(line.strip() for line in shown.splitlines())
        parts += [f"{heading} Examples", f"```sh\n{lines}\n```"]
    flags = dict(_flags(command, context))
    own = [row for flag, row in flags.items() if flag not in _KUBECTL]
    if own:
        parts += [f"{heading} Flags", _table("flag", own)]
    return (
        [*parts, "It also has the [flags of kubectl](README.md#flags-of-kubectl)."] if len(flags) > len(own) else parts
    )


def _table(of: str, rows: list[str]) -> str:
    return "\n".join((f"| {of} | meaning |", "|---|---|", *rows))


def _paragraphs(text: str) -> list[str]:
    parts = [" ".join(part.split()) for part in text.strip().split("\n\n") if part.strip()]
    return [textwrap.fill(part, _WIDTH, break_long_words=False, break_on_hyphens=False) for part in parts]


def _flags(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield each flag's long name and its row."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option) and "--help" not in parameter.opts:
            flag, text = (" ".join(part.split()).replace("|", "\\|") for part in record)
            yield parameter.opts[-1], f"| `{flag}` | {text} |"


def main(folder: str) -> None:
    """Write all pages."""
    for name, text in pages().items():
        (Path(folder) / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
