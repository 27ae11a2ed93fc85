"""A process whose first thread has ended."""

import ctypes
import os
import threading

SYS_EXIT = {"x86_64": 60, "aarch64": 93}


def first_thread_ends() -> None:
    """End the first thread alone; the process ends with its standard input."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(0)

    threading.Thread(target=wait).start()
    ctypes.CDLL(None).syscall(SYS_EXIT[os.uname().machine], 0)
