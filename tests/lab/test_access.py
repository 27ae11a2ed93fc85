"""The time limit of a kubectl call is at least the wait that the call itself asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import access, lab_errors

pytestmark = pytest.mark.slow


@pytest.fixture
def slow(tmp_path: Path) -> access.Access:
    """Use a kubectl that takes a while."""
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\nsleep 0.5\necho done\n")
    program.chmod(0o755)
    return access.Access(tmp_path / "kubeconfig", "https://127.0.0.1", tmp_path / "ca.crt", program)


def test_kubectl_timeout_exceeds_its_own_wait(slow: access.Access) -> None:
    assert slow.kubectl("wait", "pod/a", "--timeout=1s", seconds=0.1) == "done\n"


@pytest.mark.parametrize(
    "arguments",
    [("wait", "pod/a"), ("wait", "pod/a", "--request-timeout=9s"), ("exec", "a", "--", "x", "--timeout=9s")],
)
def test_kubectl_without_a_wait_has_the_usual_timeout(slow: access.Access, arguments: tuple[str, ...]) -> None:
    with pytest.raises(lab_errors.LabError, match="took more than"):
        slow.kubectl(*arguments, seconds=0.1)
