"""The entry points: `kubectl-gpushare`, also as `python -m kubectl_gpushare`, and `kubectl_complete-gpushare`."""

from __future__ import annotations

import gc
import sys

_NO_FILES, _FILES = 4, 0  # directives for the shell: offer no names of files, or do as it does by default


def main() -> int:
    # A command ends soon and makes few reference cycles: with 40,000 GPUs collecting them takes a quarter of the time.
    gc.disable()
    try:
        if sys.argv[1:2] == ["__complete"]:
            del sys.argv[1]
            return complete()
        from kubectl_gpushare import cli

        return cli.main()
    except KeyboardInterrupt:  # during the imports; later `cli` handles it
        return 130


def complete() -> int:
    """Print the candidates for the words in `sys.argv`, the last of which is partial: one a line, with a description.

    https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/ says how, and asks for a directive at the end.
    """
    from click.shell_completion import ShellComplete

    from gpushare import printable
    from kubectl_gpushare import cli

    *words, incomplete = sys.argv[1:] or [""]
    items = ShellComplete(cli.group, {}, cli.PROGRAM, "_").get_completions(words, incomplete)
    for item in items:
        if item.type == "plain":
            print("\t".join(printable.replaced(text) for text in (item.value, item.help) if text))
    print(f":{_FILES if any(item.type != 'plain' for item in items) else _NO_FILES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
