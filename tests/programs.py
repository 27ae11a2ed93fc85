"""Programs that tests run are functions in the folders `programs`; each is called in a Python of its own.

They import neither gpushare nor pytest, so that they start at once, and nothing is done while such a file is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

Parameters = ParamSpec("Parameters")
PATH = str(Path(__file__).resolve().parents[1])  # where such a Python finds them: its PYTHONPATH


def command(function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs) -> list[str]:
    """A Python that calls this function; what it is given is what literals can say."""
    given = [*map(repr, values), *(f"{name}={value!r}" for name, value in named.items())]
    return [sys.executable, "-c", f"import {function.__module__} as file\nfile.{function.__name__}({', '.join(given)})"]
