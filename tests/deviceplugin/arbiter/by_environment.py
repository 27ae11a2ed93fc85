"""The arbiter's process as the agent starts it, except that a process's container comes from its environment, as in
`arbiter_node`.
"""

from __future__ import annotations

import sys

from deviceplugin.arbiter import __main__ as program
from deviceplugin.arbiter import socket_server
from tests.deviceplugin import arbiter_node

if __name__ == "__main__":
    socket_server.by_cgroup = lambda *_: arbiter_node.identify
    sys.exit(program.main(sys.argv[1:]))
