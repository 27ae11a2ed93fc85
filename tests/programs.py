"""Programs that tests run are functions in the folders `programs`; each is called in a separate Python process.

They import only what they need, so that they start quickly, and importing such a file has no side effects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

Parameters = ParamSpec("Parameters")
PATH = str(Path(__file__).resolve().parents[1])  # the PYTHONPATH of such a process
# Programs that import aiohttp read the machine's certificates then, which takes 0.08 s; they only need the lab's.
NO_CERTIFICATES = {"SSL_CERT_FILE": "/dev/null", "SSL_CERT_DIR": "/nonexistent"}


def _call(function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs) -> str:
    arguments = [*map(repr, values), *(f"{name}={value!r}" for name, value in named.items())]
    return f"import {function.__module__} as file\nfile.{function.__name__}({', '.join(arguments)})\n"


def command(function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs) -> list[str]:
    """Return the command line that calls this function; arguments must be literals."""
    return [sys.executable, "-c", _call(function, *values, **named)]


def script(function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs) -> str:
    """Write an executable file that does the same from any directory."""
    return f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {PATH!r})\n{_call(function, *values, **named)}"
