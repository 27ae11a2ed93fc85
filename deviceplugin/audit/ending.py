"""Ends a process that got around its limits, for nodes whose administrator wants that.

By a pidfd, and only if the process behind it is the one that was judged: a pid alone may be somebody else's by now.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from deviceplugin.arbiter.socket_server import Identify
from deviceplugin.audit.seen import SeenProcess
from deviceplugin.host import kernel_process


def end(judged: SeenProcess, *, identify: Identify, proc: Path = kernel_process.PROC) -> str:
    """Kill it; return why that was not possible, or nothing. One that is gone needs no killing."""
    process = kernel_process.find(judged.pid, judged.start_ticks, proc=proc)
    if process is None:
        return ""
    try:
        if judged.container is None or identify(judged.pid) != judged.container:
            return "it is in another container now"
        signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
    except PermissionError:
        return "the agent may not: it needs the capability KILL (config/components/end-unlimited)"
    except ProcessLookupError:
        return ""
    except OSError as error:
        return str(error)
    finally:
        os.close(process.pidfd)
    return ""
