"""Interruption: whatever asks the plugin to end, ends it as Ctrl-C does, so that what it has begun is put in order."""

from __future__ import annotations

import signal


def by_any_signal() -> None:
    """From now on SIGTERM, and SIGHUP of a terminal that is closed, raise `KeyboardInterrupt`, too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, signal.default_int_handler)
