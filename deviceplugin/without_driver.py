"""Waits for the driver on a node that may not have one yet: `failOnInitError: false`.

NVIDIA's plugin then waits forever without a message. The agent retries, because a pod may install the driver, and
its readiness check says what is missing. A container runtime mounts a driver only when a container starts. So a
container that cannot see the host's driver directory ends after a while, and its successor gets a driver that was
installed in the meantime.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final

import prometheus_client

from deviceplugin.agent_settings import AgentSettings
from deviceplugin.hardware import nvml, nvml_call
from deviceplugin.injection import driver_root
from gpushare.daemon import probes, shutdown

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 15.0
GIVE_UP_SECONDS: Final = 300.0  # as rarely as the kubelet would restart it


async def opened(settings: AgentSettings, daemon: shutdown.Daemon) -> nvml.Nvml | None:
    """Wait for the driver and return it; None if the agent stops before."""
    problem = "the driver has not been tried yet"
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
                        f"{error}; this container ends, so that the next one gets a driver that was installed in the "
                        f"meantime: {mounted}, where the host's driver would appear, is not a directory"
                    )
                if str(error) != problem:
                    logger.warning("No driver found", extra={"err": str(error)})
                problem = str(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):
                    await daemon.stopping.wait()
    return None
