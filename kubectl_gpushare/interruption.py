"""Interruption: every signal that ends the plugin acts as Ctrl-C does, so that its clean-up runs."""

from __future__ import annotations

import signal


def by_any_signal() -> None:
    """Make SIGTERM and SIGHUP (a closed terminal) raise `KeyboardInterrupt`, as SIGINT does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)
