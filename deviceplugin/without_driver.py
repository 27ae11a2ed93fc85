"""Waits for a driver, on a node where there may be none yet: `failOnInitError: false`.

NVIDIA's plugin then waits for ever and says nothing. This looks again now and then, as drivers are installed by pods
too, and its readiness says what is missing. What a runtime brings into a container it brings at its start: a container
that can see no driver of the host ends after a while, so that the next one is given what has been installed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final

import prometheus_client

from deviceplugin.agent_settings import AgentSettings
from deviceplugin.cdi import driver_root
from deviceplugin.hardware import nvml, nvml_call
from gpushare.daemon import probes, shutdown

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 15.0
GIVE_UP_SECONDS: Final = 300.0  # as rarely as the kubelet would start it again


async def opened(settings: AgentSettings, daemon: shutdown.Daemon) -> nvml.Nvml | None:
    """The driver once it answers; None if this is told to stop before."""
    problem = "the driver was not asked yet"
    mounted = settings.container_driver_root
    last = time.monotonic() + GIVE_UP_SECONDS
    registry = prometheus_client.CollectorRegistry()
    async with probes.serve(
        {"driver": lambda: problem}, registry, host=settings.probe_host, port=settings.probe_port
    ) as port:
        logger.info("Waiting for a driver", extra={"node": settings.node_name, "probe_port": port})
        while not daemon.stopping.is_set():
            try:
                driver_root.load_nvml(mounted, settings.driver_root)
                return await asyncio.to_thread(nvml.Nvml)
            except nvml_call.NvmlError as error:
                if error.code == nvml.NO_LIBRARY and not mounted.is_dir() and time.monotonic() > last:
                    daemon.fail(
                        f"{error}; this container ends, so that the next one is given a driver that was installed "
                        f"meanwhile: {mounted} is not a directory, where the host's own would be seen to come"
                    )
                if str(error) != problem:
                    logger.warning("There is no driver", extra={"err": str(error)})
                problem = str(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await daemon.stopping.wait()
    return None
