"""Which instance of which GPU a MIG device is, be the driver able to say it or not. Pure."""

from __future__ import annotations

from collections.abc import Callable

from gpushare import errors
from gpushare.mig import legacy


def located(uuid: str, index: str, ask: Callable[[str], legacy.Instance]) -> legacy.Instance:
    """Where the device is that has this UUID and index (`0:1`; `0` is a whole GPU).

    ask: the driver, which may raise anything; drivers that cannot be asked had UUIDs that say it. Raises GpushareError
    for a whole GPU, and what `ask` raised where the UUID says nothing.
    """
    if ":" not in index:
        raise errors.GpushareError(f"cannot get GI and CI of full device {uuid}: it is a GPU, ask for its MIG devices")
    try:
        return ask(uuid)
    except Exception:
        try:
            return legacy.parse(uuid)
        except errors.GpushareError:
            pass
        raise
