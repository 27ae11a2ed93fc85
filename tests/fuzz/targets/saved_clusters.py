"""A file for `--from` or `-f`, and the verb's output; the first line has the command's arguments."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import tempfile
from pathlib import Path

from kubectl_gpushare import cli
from tests.fuzz import laws
from tests.kubectl_gpushare import test_malformed_files as malformed

_DIRECTORY = Path(tempfile.mkdtemp())
_OTHER = _DIRECTORY / "other.json"
_OTHER.write_text('{"kind": "GPUNode", "metadata": {"name": "gpu-1"}}')
COMMANDS = tuple(
    [f"{words} --from {{path}}" for words in malformed.COMMANDS]
    + ["fit -f {path} --from {other}", "simulate -f {path} --from {other}", "check --before-install -f {path}"]
)


def run(data: bytes) -> None:
    first, _, body = data.partition(b"\n")
    words = first.decode("utf-8", "replace")
    if words not in COMMANDS:
        return
    path = _DIRECTORY / "cluster"
    path.write_bytes(body)
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    os.environ["KUBECONFIG"] = "/nonexistent"
    os.environ["KUBECTL_PATH"] = "/nonexistent"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(words.format(path=path, other=_OTHER).split())
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)
    err.flush()
    said = err.buffer.getvalue().decode(errors="replace")
    assert code in (0, 1, 2), code
    if code == 1 and not words.startswith(("audit", "check", "config")):  # these report what they could not read
        assert said.startswith(("error: ", "warning: ")), said
    for line in said.splitlines():
        if line:
            assert line.isprintable(), repr(line)
    if code == 1 and said.startswith("error: "):
        laws.check_sentence(said.splitlines()[0][:1000])
