"""A planted fault, two steps deep, that the fuzzer must find."""

from __future__ import annotations


def run(data: bytes) -> None:
    if len(data) > 1 and data[0] == ord("!"):
        if data[1] == ord("!"):
            raise KeyError(data)
        data.decode("latin-1")
