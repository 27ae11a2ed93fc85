"""Programs that tests run are functions in the folders `programs`; each is called in a Python of its own.

They import what they need and no more, so that they start at once; nothing is done while such a file is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

Parameters = ParamSpec("Parameters")
PATH = str(Path(__file__).resolve().parents[1])  # where such a Python finds them: its PYTHONPATH


def _call(function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs) -> str:
    arguments = [*map(repr, values), *(f"{name}={value!r}" for name, value in named.items())]
    return f"import {function.__module__} as file\nfile.{function.__name__}({', '.join(arguments)})\n"


def command(function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs) -> list[str]:
    """A Python that calls this function; what it is given is what literals can say."""
    return [sys.executable, "-c", _call(function, *values, **named)]


def script(function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs) -> str:
    """A file that can be executed and does the same, wherever it is."""
    return f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {PATH!r})\n{_call(function, *values, **named)}"
