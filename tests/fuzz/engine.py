"""libFuzzer on a Python target: `python -m tests.fuzz.engine TARGET [its options] [corpus …]`."""

from __future__ import annotations

import importlib
import sys

import atheris

from tests.fuzz import mutation, table

INSTRUMENTED = ["gpushare", "webhook", "deviceplugin", "kubectl_gpushare", "tests.fuzz.targets"]


def main(arguments: list[str]) -> None:
    """Run libFuzzer, which ends the process."""
    name = arguments[1]
    target = table.of(name)
    with atheris.instrument_imports(include=INSTRUMENTED):
        module = importlib.import_module(f"tests.fuzz.targets.{name}")

    def bytewise(data: bytes, most: int) -> bytes:
        return bytes(atheris.Mutate(data, max(most, 1)))

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        return mutation.changed(data, most, seed, bytewise=bytewise, headed=target.kind == "headed")

    more = {} if target.kind == "bytes" else {"custom_mutator": mutate}
    atheris.Setup([arguments[0], *arguments[2:]], module.run, **more)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
