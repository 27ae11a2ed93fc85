"""A process that has a ledger, and one that takes it over."""

from __future__ import annotations

import mmap
import os
import sys


def holds(descriptor: int) -> None:
    held = mmap.mmap(descriptor, 4096)
    held[8:16] = (7).to_bytes(8, "little")
    os.setgid(1000)
    os.setuid(1000)
    print(flush=True)
    sys.stdin.read()


def takes_over(pid: int, device: int, inode: int) -> None:
    from deviceplugin.arbiter import pages
    from deviceplugin.host import kernel_process

    seen = kernel_process.mapping(pid, (device, inode))
    try:
        used_bytes = pages.Ledger.reopen(seen.link, 1, (device, inode)).used_bytes(64) if seen.link else None
    except OSError:
        used_bytes = None
    print(seen.known, used_bytes, kernel_process.missing_capabilities())
