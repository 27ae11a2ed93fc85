"""PCI addresses, which the driver and the kernel write differently."""

from __future__ import annotations

import re
from typing import Final

_DRIVER: Final = re.compile(r"0000([0-9a-f]{4}:.+)")


def kernel_address(bus_id: str) -> str:
    """The address as in /sys/bus/pci/devices: `00000000:0A:00.0` is `0000:0a:00.0`."""
    lowered = bus_id.lower()
    match = _DRIVER.fullmatch(lowered)
    return match[1] if match else lowered
