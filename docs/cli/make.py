"""Makes the pages of this folder: one for each verb, in Markdown, made from what `--help` is made of.

Run: `make docs`; a test says when it is time to.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from kubectl_gpushare import cli

_BLOCK = "\b"  # click's mark of a paragraph that is not wrapped

# verb -> pictures of docs/images, each with what it shows
PICTURES: Mapping[str, Mapping[str, str]] = {
    "top": {"top": "A line per GPU, with bars and totals", "top-pods": "A line per pod"},
    "describe": {"describe": "One card with its tenants"},
    "why": {"why": "Why a pod waits, and what would help"},
    "fit": {"fit": "Where six shares would go"},
    "simulate": {"simulate": "Forty half GPUs come to sixteen GPUs"},
}


def pages() -> dict[str, str]:
    """File name → text, for every verb, and README.md with the list of them."""
    context = click.Context(cli.group, info_name=cli.PROGRAM)
    texts = {"README.md": _index()}
    for verb in cli.VERBS:
        command = cli.group.get_command(context, verb)
        assert command is not None  # noqa: S101 - it is listed
        texts[f"{verb}.md"] = _page(verb, command, context)
    return texts


def _index() -> str:
    lines = [f"- [`{verb}`]({verb}.md): {text}" for verb, text in cli.VERBS.items()]
    intro = inspect.cleandoc(cli.group.help or "").partition(_BLOCK)[0].strip()
    return f"# {cli.PROGRAM}\n\n{intro}\n\n" + "\n".join(lines) + "\n"


def _page(verb: str, command: click.Command, parent: click.Context) -> str:
    context = click.Context(command, info_name=verb, parent=parent)
    pictures = [f"![{text}](../images/{name}.svg)" for name, text in PICTURES.get(verb, {}).items()]
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
    flags = list(_flags(command, context))
    return [*parts, f"{heading} Flags", "\n".join(("| flag | meaning |", "|---|---|", *flags))] if flags else parts


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.strip().split("\n\n") if part.strip()]


def _flags(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option) and "--help" not in parameter.opts:
            flag, text = (" ".join(part.split()).replace("|", "\\|") for part in record)
            yield f"| `{flag}` | {text} |"


def main(folder: str) -> None:
    """Writes all pages."""
    for name, text in pages().items():
        (Path(folder) / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
