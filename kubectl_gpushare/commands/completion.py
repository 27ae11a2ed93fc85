"""`completion`: installs the program that completes `kubectl gpushare …` in the shell."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from kubectl_gpushare import plugin_errors

NAME = "kubectl_complete-gpushare"  # what kubectl looks for on PATH
PROGRAM = """\
#!/bin/sh
exec kubectl-gpushare __complete "$@"
"""


@click.command(short_help="Let kubectl complete verbs, flags and names in your shell")
@click.option("folder", "--to", metavar="FOLDER", help=f"Install the program there, as {NAME}; a folder on PATH")
def command(folder: str | None) -> None:
    """Let kubectl complete verbs, flags and names in your shell.

    kubectl runs the program kubectl_complete-gpushare from your PATH for candidates. pip, pipx and uv install it next
    to the plugin. krew does not, so put it into krew's folder. Your shell needs kubectl's own completion, such as
    `source <(kubectl completion bash)`.

    \b
    Examples:
      # After an installation by krew
      kubectl gpushare completion --to ~/.krew/bin
    \b
      # Only print the program
      kubectl gpushare completion
    """
    if folder is None:
        sys.stdout.write(PROGRAM)
        return
    path = Path(folder).expanduser() / NAME
    try:
        if not _is_ours(path):
            raise plugin_errors.FileError(
                f"{path} is there already, and not by this command: if pip, pipx or uv has put it there, nothing more "
                "is needed; else remove it first"
            )
        fresh = path.with_name(f".{NAME}.{os.getpid()}")
        try:
            fresh.write_text(PROGRAM)
            fresh.chmod(0o755)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise plugin_errors.FileError(
            f"{path} cannot be written ({error.strerror}): name a folder of yours that is on PATH"
        ) from error
    print(f"{path} written")
    if str(path.parent.resolve()) not in [str(Path(entry).resolve()) for entry in os.get_exec_path()]:
        print(f"warning: {path.parent} is not on PATH, so that kubectl does not find it there", file=sys.stderr)


def _is_ours(path: Path) -> bool:
    """Whether the file may be overwritten: it is missing, is our program, or links to an older version of it."""
    if path.is_symlink():
        return path.readlink().name == NAME or not path.exists()
    return not path.exists() or (path.is_file() and path.read_bytes() == PROGRAM.encode())
