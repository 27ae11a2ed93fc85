"""The bad days as a table: the failure during each, and the repair at its end."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from days.proxy import Fault
from days.stage import Stage


@dataclass(frozen=True)
class Day:
    during: Callable[[Stage], AbstractContextManager[None]]
    seconds: Callable[[argparse.Namespace], float] = lambda options: float(options.seconds)
    nodes: int = 16
    environment: Callable[[Path], Mapping[str, str]] = lambda _: {}


def answering(fault: Fault) -> Callable[[Stage], AbstractContextManager[None]]:
    @contextlib.contextmanager
    def during(stage: Stage) -> Iterator[None]:
        stage.proxy.set(fault)
        try:
            yield
        finally:
            stage.proxy.set(Fault())

    return during


@contextlib.contextmanager
def nothing(_: Stage) -> Iterator[None]:
    yield


@contextlib.contextmanager
def cut_off(stage: Stage) -> Iterator[None]:
    with stage.proxy.nowhere():
        yield


@contextlib.contextmanager
def many_deleted(stage: Stage) -> Iterator[None]:
    """Delete all pods of a namespace, each with its own call: in a single call the API server deletes them one by
    one.
    """
    stage.fill(stage.options.pods)
    yield
    stage.delete_all()


@contextlib.contextmanager
def no_space(stage: Stage) -> Iterator[None]:
    """Act as an etcd that has reached its quota: it rejects writes and answers reads."""
    _alarm(stage, "ACTIVATE")
    try:
        yield
    finally:
        _alarm(stage, "DEACTIVATE")


def _alarm(stage: Stage, action: str) -> None:
    status = _etcd(stage, "/v3/maintenance/status", {})
    _etcd(
        stage,
        "/v3/maintenance/alarm",
        {"action": action, "memberID": status["header"]["member_id"], "alarm": "NOSPACE"},
    )


def _etcd(stage: Stage, path: str, body: object) -> dict[str, dict[str, str]]:
    line = http.client.HTTPConnection("localhost", timeout=10)
    line.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.sock.connect(str(stage.lab.etcd / "client.sock"))
    with contextlib.closing(line):
        line.request("POST", path, json.dumps(body))
        answer = line.getresponse()
        content = answer.read()
    if answer.status != http.client.OK:
        raise SystemExit(f"etcd {path}: {answer.status} {content.decode()[:300]}")
    document: dict[str, dict[str, str]] = json.loads(content)
    return document


DAYS: Mapping[str, Day] = {
    "nothing": Day(nothing),
    "429": Day(answering(Fault(status=429, retry_after_seconds=1))),
    "500": Day(answering(Fault(status=500))),
    "3 s a call": Day(answering(Fault(delay_seconds=3.0))),
    "7 s a call": Day(answering(Fault(delay_seconds=7.0))),
    "etcd out of space": Day(no_space),
    "many pods deleted": Day(many_deleted, seconds=lambda _: 1.0, nodes=80),
    "cut off": Day(cut_off, seconds=lambda options: float(options.cut_seconds)),
}
