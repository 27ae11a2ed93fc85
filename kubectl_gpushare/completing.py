"""`kubectl_complete-gpushare`: run by kubectl to complete `kubectl gpushare …`; also `kubectl-gpushare __complete`.

Its arguments are the words so far, the last one partial. It prints one candidate per line with a description after a
tab, and last a directive (https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/): 4 is "no file names", 0
the shell's default.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from click.shell_completion import ShellComplete

from gpushare import printable
from kubectl_gpushare import cli

_NO_FILES = 4
_FILES = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the candidates for these words, or those in `sys.argv`."""
    *words, incomplete = (sys.argv[1:] if arguments is None else arguments) or [""]
    shell = ShellComplete(cli.group, {}, cli.PROGRAM, "_")
    items = shell.get_completions(words, incomplete)
    directive = _FILES if any(item.type != "plain" for item in items) else _NO_FILES
    for item in items:
        if item.type == "plain":
            print("\t".join(printable.replaced(text) for text in (item.value, item.help) if text))
    print(f":{directive}")
    return 0
