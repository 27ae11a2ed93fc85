"""The fates of a namespace's pods, by a watch that misses none of them, however briefly they lived."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from dataclasses import dataclass
from typing import Any
from urllib import parse

from burst import calls

from gpushare import contract

STOP_SECONDS = 30.0


@dataclass
class Fates:
    """UIDs of pods that were `created`, `placed`, and that `ran`; `now`: the current pods by name."""

    server: calls.Server
    namespace: str

    def __post_init__(self) -> None:
        self.created: set[str] = set()
        self.placed: set[str] = set()
        self.ran: set[str] = set()
        self.now: dict[str, dict[str, Any]] = {}
        self._thread = threading.Thread(target=self._run, name="fates", daemon=True)
        self._error: Exception | None = None

    def start(self) -> None:
        address = parse.urlsplit(self.server.url)
        self._line = http.client.HTTPSConnection(address.netloc, context=self.server.tls(), timeout=STOP_SECONDS)
        self._line.request("GET", f"/api/v1/namespaces/{self.namespace}/pods?watch=true&timeoutSeconds=86400")
        self._answer = self._line.getresponse()
        if self._answer.status != http.client.OK:
            raise SystemExit(f"the pods cannot be watched: {self._answer.read(500).decode()}")
        self._line.sock.settimeout(None)
        self._thread.start()

    def stop(self) -> None:
        """End the watch; call it after the last event. Raises SystemExit if the watch has already ended."""
        if not self._thread.is_alive():
            raise SystemExit(f"the watch of the pods ended: {self._error}")
        self._line.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            for line in self._answer:
                event = json.loads(line)
                self._see(event["type"], event["object"])
        except Exception as error:
            self._error = error

    def _see(self, kind: str, pod: dict[str, Any]) -> None:
        metadata, status = pod["metadata"], pod.get("status", {})
        uid, annotations = metadata["uid"], metadata.get("annotations", {})
        self.created.add(uid)
        if contract.ALLOCATION in annotations:
            self.placed.add(uid)
        if status.get("phase") in ("Running", "Succeeded"):
            self.ran.add(uid)
        if kind == "DELETED":
            self.now.pop(metadata["name"], None)
        else:
            self.now[metadata["name"]] = pod
