"""A program that allocates while signals arrive."""

from __future__ import annotations

import signal
import time

from tests.interposer.cuda_client import MIB, OUT_OF_MEMORY, SUCCESS, Cuda


def allocates_among_signals() -> None:
    c = Cuda()
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    began = time.monotonic()
    assert c.allocate(MIB)[0] == SUCCESS and c.allocate(1)[0] == OUT_OF_MEMORY
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert time.monotonic() - began >= 0.3, time.monotonic() - began
