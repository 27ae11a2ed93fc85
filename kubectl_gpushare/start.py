"""`kubectl-gpushare`: the entry point. It starts kubectl first and imports the command line meanwhile."""

from __future__ import annotations

import gc
import os
import sys

from kubectl_gpushare import early


def main() -> int:
    """Run the plugin with the words in `sys.argv`; return the exit code."""
    # A command ends soon and makes few reference cycles: on 40,000 GPUs collecting them takes a quarter of the time.
    gc.disable()
    if sys.argv[1:2] == ["__complete"]:
        from kubectl_gpushare import completing

        return completing.main(sys.argv[2:])
    try:
        early.begin(sys.argv[1:], os.environ)
        from kubectl_gpushare import cli  # while kubectl waits for the API server

        return cli.main()
    except KeyboardInterrupt:  # `cli` handles it once it is imported
        return 130
    finally:
        early.end()
