"""Calls NVML, and turns errors into sentences that name the function and the device."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import pynvml

NEED_NO_ANSWER: Final = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_NAMES: Final = {
    number: name.removeprefix("NVML_") for name, number in vars(pynvml).items() if name.startswith("NVML_ERROR_")
}
_DRIVER: Final = re.compile(r"0000([0-9a-f]{4}:.+)")


class NvmlError(Exception):
    """A call of NVML failed; the message names function and device. code: NVML's error number."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def ask(
    function: Callable[..., Any], *arguments: Any, about: str = "", default: Any = None, allowed: tuple[int, ...] = ()
) -> Any:
    """Call NVML; return `default` for the `allowed` errors. Raises NvmlError for others."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        code = int(error.value)  # type: ignore[attr-defined]
        if code in allowed:
            return default
        shown = about or ", ".join(str(argument) for argument in arguments if isinstance(argument, (int, str)))
        raise NvmlError(f"{function.__name__}({shown}) failed: {error}", code) from error


def try_ask(function: Callable[..., Any], *arguments: Any, default: Any = None) -> Any:
    """Call NVML; return `default` for any error."""
    try:
        return ask(function, *arguments)
    except NvmlError:
        return default


def function_named(name: str) -> Callable[..., Any]:
    """Return NVML's function of this name. If pynvml lacks it, calls fail as with a driver that lacks it."""

    def fail(*_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)  # type: ignore[no-untyped-call]

    fail.__name__ = name
    return getattr(pynvml, name, None) or fail


def error_name(code: int) -> str:
    """Return NVML's name of an error number, for example `ERROR_NOT_SUPPORTED`."""
    return _NAMES.get(code, str(code))


def kernel_address(bus_id: str) -> str:
    """Return a PCI address in the kernel's form: `00000000:0A:00.0` becomes `0000:0a:00.0`."""
    lowered = bus_id.lower()
    match = _DRIVER.fullmatch(lowered)
    return match[1] if match else lowered
