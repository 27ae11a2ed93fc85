"""libFuzzer on a Python target: `python -m tests.fuzz.engine TARGET [its options] [corpus …]`.

Without arguments: reads such arguments, one list per line as JSON, with the file for the output, runs each in a fork, and
prints its exit code. Importing a target takes longer than a short run, and targets share modules.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from types import ModuleType

import atheris

from tests.fuzz import mutation, table

INSTRUMENTED = ["gpushare", "webhook", "deviceplugin", "kubectl_gpushare", "tests.fuzz.targets"]


def main(arguments: list[str]) -> None:
    """Run libFuzzer, which ends the process."""
    _fuzz(_imported(arguments[1]), arguments)


def serve() -> None:
    """Run libFuzzer once for each line of input."""
    for line in sys.stdin:
        arguments, said = json.loads(line)
        module = _imported(arguments[1])
        if child := os.fork():
            sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
            sys.stdout.flush()
            continue
        output = os.open(said, os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _fuzz(module, arguments)


def _imported(name: str) -> ModuleType:
    with atheris.instrument_imports(include=INSTRUMENTED):
        return importlib.import_module(f"tests.fuzz.targets.{name}")


def _fuzz(module: ModuleType, arguments: list[str]) -> None:
    target = table.of(arguments[1])

    def bytewise(data: bytes, most: int) -> bytes:
        return bytes(atheris.Mutate(data, max(most, 1)))

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        return mutation.changed(data, most, seed, bytewise=bytewise, headed=target.kind == "headed")

    more = {} if target.kind == "bytes" else {"custom_mutator": mutate}
    atheris.Setup([arguments[0], *arguments[2:]], module.run, **more)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv) if sys.argv[1:] else serve()
