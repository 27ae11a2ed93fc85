"""A webhook that always answers at once with the same response: the API server's cost of any webhook, and so gpushare's
limit.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import multiprocessing
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare import contract

NODE = "gpu-node-0000"
UUID = "GPU-00000000000000000000000000000000"
SHARE = {contract.RESOURCE_PERCENT: "10", contract.RESOURCE_MEMORY: "8Gi"}
HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Running:
    url: str
    pid: int


@contextlib.contextmanager
def running(certificate: Path, key: Path) -> Iterator[Running]:
    """Run one process that answers on a free port. The certificate is for `localhost`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(certificate, key, theirs), daemon=True)
    process.start()
    try:
        yield Running(f"https://localhost:{ours.recv()}{contract.WEBHOOK_PATH}", int(process.pid or 0))
    finally:
        process.terminate()
        process.join(10)


def _patch() -> str:
    """Return as many operations as gpushare's patch for a pod of `made.pods` has."""
    results = {contract.ALLOCATION: "a" * 26, contract.NODE: NODE, contract.GPU_UUIDS: UUID}
    environment = {
        contract.ENV_VISIBLE_DEVICES: UUID,
        contract.ENV_REQUEST: "10",
        contract.ENV_LIMIT: "100",
        contract.ENV_MEMORY: str(8 << 30),
    }
    resources = "/spec/containers/0/resources"
    added: list[tuple[str, Any]] = [
        *((f"/metadata/annotations/{_escaped(key)}", value) for key, value in results.items()),
        (f"/metadata/labels/{_escaped(contract.SHARE_LABEL)}", contract.SHARE_LABEL_VALUE),
        ("/spec/nodeSelector", {contract.HOSTNAME_LABEL: NODE}),
        (f"{resources}/limits", SHARE),
        *((f"{resources}/requests/{_escaped(key)}", value) for key, value in SHARE.items()),
        ("/spec/containers/0/env", [{"name": name, "value": value} for name, value in environment.items()]),
    ]
    operations = [{"op": "add", "path": path, "value": value} for path, value in added]
    return base64.b64encode(json.dumps(operations).encode()).decode()


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


class _Line(asyncio.Protocol):
    """One connection of the API server, which sends the next request after the answer to the last one."""

    def __init__(self, patch: str) -> None:
        self._patch = patch
        self._read = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, body = self._read.partition(HEAD_END)
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if not end or length is None or len(body) < int(length[1]):
            return
        self._read = b""
        response = {
            "uid": json.loads(body)["request"]["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": self._patch,
        }
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        answer = json.dumps(review).encode()
        lines = (b"HTTP/1.1 200 OK", b"Content-Type: application/json", b"Content-Length: %d" % len(answer))
        self._transport.write(b"\r\n".join(lines) + HEAD_END + answer)


def _serve(certificate: Path, key: Path, pipe: Any) -> None:
    async def serve() -> None:
        tls, patch = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), _patch()
        tls.load_cert_chain(certificate, key)
        server = await asyncio.get_running_loop().create_server(lambda: _Line(patch), "127.0.0.1", 0, ssl=tls)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())
