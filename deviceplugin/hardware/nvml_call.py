"""One call of NVML, and what went wrong with it in a sentence that names the function and the device."""

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
    """The driver did not give what was asked; the message is a sentence that names call and device.

    code: NVML's number.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def ask(
    function: Callable[..., Any],
    *arguments: Any,
    about: str = "",
    default: Any = ...,
    allowed: tuple[int, ...] | None = (),
) -> Any:
    """Call NVML. With a `default`, the errors `allowed` (None: all) give that instead of an NvmlError."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        code = int(error.value)  # type: ignore[attr-defined]
        if default is not ... and (allowed is None or code in allowed):
            return default
        shown = about or ", ".join(str(argument) for argument in arguments if isinstance(argument, (int, str)))
        raise NvmlError(f"{function.__name__}({shown}) failed: {error}", code) from error


def function_named(name: str) -> Callable[..., Any]:
    """Return NVML's function of this name. If pynvml is too old for it, it fails as if the driver were too old."""
    return getattr(pynvml, name, None) or _not_found(name)


def _not_found(name: str) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)  # type: ignore[no-untyped-call]

    fail.__name__ = name
    return fail


def error_name(code: int) -> str:
    """What NVML calls its number, as `ERROR_NOT_SUPPORTED`."""
    return _NAMES.get(code, str(code))


def kernel_address(bus_id: str) -> str:
    """The address as in /sys/bus/pci/devices: `00000000:0A:00.0` is `0000:0a:00.0`."""
    lowered = bus_id.lower()
    match = _DRIVER.fullmatch(lowered)
    return match[1] if match else lowered
