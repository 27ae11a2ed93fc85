"""Who uses a GPU, by what the kernel says of its processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deviceplugin.live import usage
from deviceplugin.live.witness import Witness

UID = "0a0a0a0a-0000-0000-0000-000000000001"
IN_A_POD = f"0::/kubepods.slice/pod{UID}/{'c' * 64}\n"
POD = {"metadata": {"namespace": "ml", "name": "x", "uid": UID}}


def witness(proc: Path) -> Any:
    nothing = SimpleNamespace(nvml=None)
    return Witness(nothing, pod_resources_socket=Path("/none"), pods=lambda: [POD], proc=proc)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "cgroup", "expected"),
    [
        (b"python", IN_A_POD, usage.Process(7, "python", "ml/x")),
        (b"\xff\xfe", IN_A_POD, usage.Process(7, "\ufffd\ufffd", "ml/x")),
        (b"nvidia-cuda-mps", "0::/system.slice/mps.service\n", None),
        (b"nvidia-cuda-mps", IN_A_POD, usage.Process(7, "nvidia-cuda-mps", "ml/x")),
        (b"Xorg", "0::/user.slice\n", usage.Process(7, "Xorg")),
    ],
    ids=["of a pod", "a name that is no text", "a daemon of the host's", "a name that is not its own", "of the host"],
)
def test_a_process_is_known_by_its_pod_whatever_it_calls_itself(
    tmp_path: Path, name: bytes, cgroup: str, expected: usage.Process | None
) -> None:
    directory = tmp_path / "7"
    directory.mkdir()
    (directory / "comm").write_bytes(name + b"\n")
    (directory / "cgroup").write_text(cgroup)
    assert witness(tmp_path)._process(7) == expected
    assert witness(tmp_path)._process(8) is None  # it is gone
