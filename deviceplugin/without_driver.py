"""Waits for a driver, on a node where there may be none yet: `failOnInitError: false`.

NVIDIA's plugin then waits for ever and says nothing. This looks again now and then, as drivers are installed by pods
too, and its readiness says what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

import prometheus_client

from deviceplugin.hardware import nvml, nvml_call
from deviceplugin.settings import Settings
from gpushare.daemon import probes, shutdown

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 15.0


async def opened(settings: Settings, daemon: shutdown.Daemon) -> nvml.Nvml | None:
    """The driver once it answers; None if this is told to stop before."""
    problem = "the driver was not asked yet"
    registry = prometheus_client.CollectorRegistry()
    async with probes.serve(
        {"driver": lambda: problem}, registry, host=settings.probe_host, port=settings.probe_port
    ) as port:
        logger.info("Waiting for a driver", extra={"node": settings.node_name, "probe_port": port})
        while not daemon.stopping.is_set():
            try:
                return await asyncio.to_thread(nvml.Nvml)
            except nvml_call.NvmlError as error:
                if str(error) != problem:
                    logger.warning("There is no driver", extra={"err": str(error)})
                problem = str(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await daemon.stopping.wait()
    return None
