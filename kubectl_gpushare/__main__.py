"""`python -m kubectl_gpushare`: the plugin without an installed script."""

from __future__ import annotations

import sys

from kubectl_gpushare import start

if __name__ == "__main__":
    sys.exit(start.main())
