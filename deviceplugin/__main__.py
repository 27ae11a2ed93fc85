"""`python -m deviceplugin`: reads the settings, loads the driver, installs the library, and runs the agent."""

from __future__ import annotations

import logging
import os
import sys

from deviceplugin import agent, agent_settings
from deviceplugin.hardware import nvml, nvml_call
from deviceplugin.host import library
from deviceplugin.injection import driver_root
from gpushare.daemon import lifecycle

logger = logging.getLogger("deviceplugin")


def main() -> int:
    try:
        settings = agent_settings.parse(sys.argv[1:], os.environ)
    except agent_settings.SettingsError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    lifecycle.configure_logs(settings.log_level, "agent")
    try:
        driver_root.load_nvml(settings.container_driver_root, settings.driver_root)
        driver = nvml.Nvml() if settings.fail_on_init_error else None
        installed = library.install(settings.library, root=settings.root)
    except (nvml_call.NvmlError, library.LibraryError) as error:
        # The message says it all; a stack trace would only hide it.
        logger.error("The agent cannot start", extra={"err": str(error)})  # noqa: TRY400
        return 1
    return lifecycle.run(lambda daemon: agent.run(settings, daemon, opened=driver, installed=installed))


if __name__ == "__main__":
    sys.exit(main())
