"""Checks every version of every GPUNode that was ever stored.

It reads them from etcd: a watch through the API server misses writes around a restart of it.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

from burst import calls, truth

from gpushare import codec, contract, ledger

PREFIX = f"/registry/{contract.GROUP_NAME}/{contract.GPUNODE_PLURAL}/"
POLL_SECONDS = 0.1
STOP_SECONDS = 30.0


class _Etcd(http.client.HTTPConnection):
    """HTTP over etcd's socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=STOP_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))


class LedgerWatch:
    """The checker. versions: how many it saw; broken: a sentence for each over-committed GPU in one of them.

    released: when shares were released, which only the elected placer does.
    """

    def __init__(self, server: calls.Server, etcd: Path) -> None:
        self._server = server
        self._seen = int(truth.version(server))
        self._line = _Etcd(etcd)
        self._thread = threading.Thread(target=self._run, name="ledger watch", daemon=True)
        self._error: Exception | None = None
        self.versions = 0
        self.broken: list[str] = []
        self.released: list[float] = []
        self._held: dict[str, set[str]] = {}

    def start(self) -> None:
        end = PREFIX[:-1] + chr(ord(PREFIX[-1]) + 1)
        asked = {
            "key": _text(PREFIX),
            "range_end": _text(end),
            "start_revision": self._seen + 1,
            "progress_notify": True,
        }
        self._line.request("POST", "/v3/watch", json.dumps({"create_request": asked}))
        self._answer = self._line.getresponse()
        if self._answer.status != http.client.OK:
            raise SystemExit(f"etcd cannot be watched: {self._answer.read(500).decode()}")
        self._line.sock.settimeout(None)
        self._thread.start()

    def stop(self) -> None:
        """Wait until all writes so far are checked, and end."""
        items = calls.ask(self._server, calls.call("GET", contract.GPUNODE_PATH))["items"]
        last = max((int(item["metadata"]["resourceVersion"]) for item in items), default=0)
        deadline = time.monotonic() + STOP_SECONDS
        while self._seen < last:
            if self._error is not None or time.monotonic() > deadline:
                raise SystemExit(f"not all versions were checked: {self._error}")
            time.sleep(POLL_SECONDS)
        self._line.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            for line in self._answer:
                for event in json.loads(line)["result"].get("events", ()):
                    self._see(event)
        except Exception as error:
            self._error = error

    def _see(self, event: dict[str, Any]) -> None:
        if event.get("type") != "DELETE":
            self.versions += 1
            node = codec.read(json.loads(base64.b64decode(event["kv"]["value"])))
            self.broken += ledger.violations(node)
            held = {entry.id for entry in node.allocations}
            if self._held.get(node.name, set()) - held:
                self.released.append(time.monotonic())
            self._held[node.name] = held
        self._seen = max(self._seen, int(event["kv"]["mod_revision"]))


def _text(key: str) -> str:
    return base64.b64encode(key.encode()).decode()
