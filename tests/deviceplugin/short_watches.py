"""Runs the agent with watches of a second or two, and a short limit on the API server's silence."""

from __future__ import annotations

import sys

from deviceplugin import __main__, node_parts
from gpushare.cluster import api_client

if __name__ == "__main__":
    node_parts.STALE_SECONDS, api_client.WATCH_SECONDS = 3.0, (1, 2)  # type: ignore[misc]
    sys.exit(__main__.main())
