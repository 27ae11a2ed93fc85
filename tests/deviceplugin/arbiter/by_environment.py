"""The arbiter's process as the agent starts it, except that a process's container comes from its environment, as in
`named`.
"""

from __future__ import annotations

import sys

from deviceplugin.arbiter import __main__ as program
from deviceplugin.arbiter import socket_server
from tests.deviceplugin import named

if __name__ == "__main__":
    socket_server.by_cgroup = lambda *_: named.identify
    sys.exit(program.main(sys.argv[1:]))
