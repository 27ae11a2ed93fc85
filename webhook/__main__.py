"""`python -m webhook`: parses the settings and runs the process."""

from __future__ import annotations

import os
import sys

from gpushare.daemon import lifecycle
from webhook import webhook_settings as configuration


def main() -> int:
    try:
        settings = configuration.parse(sys.argv[1:], os.environ)
    except configuration.UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    lifecycle.configure_logs(settings.log_level, "webhook")

    async def run(daemon: lifecycle.Daemon) -> None:
        # Import only one of them: each needs packages that the other does not.
        if settings.from_file is not None:
            from webhook import memory_cluster

            await memory_cluster.run(settings, settings.from_file, daemon)
        else:
            from webhook import cluster_process

            await cluster_process.run(settings, daemon)

    return lifecycle.run(run)


if __name__ == "__main__":
    sys.exit(main())
