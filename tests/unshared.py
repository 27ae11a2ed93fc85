"""Runs in a separate mount namespace, as root or not."""

from __future__ import annotations

import os

MOUNTS = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
