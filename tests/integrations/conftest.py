"""gpushare next to other projects' programs. Building those takes minutes, so only `make test-integrations` runs these
tests.
"""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("GPUSHARE_TEST_INTEGRATIONS") == "1" else ["test_*.py"]
