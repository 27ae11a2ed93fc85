"""The agent needs exactly the capabilities that the component adds to deny devices."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.deviceplugin.denial.kernel_node import KernelNode
from tests.deviceplugin.denial.programs import denying
from tests.programs import command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("capabilities", "how", "answer"),
    [
        ("bpf,+net_admin,+perfmon", "looking", "1\n1\n"),
        ("sys_admin", "looking", "1\n1\n"),
        ("net_admin,+perfmon", "looking", "the agent lacks the capabilities BPF"),
        ("bpf,+perfmon", "looking", "the agent lacks the capabilities NET_ADMIN"),
        ("bpf,+net_admin", "looking", "the agent lacks the capabilities PERFMON"),
        ("net_admin,+perfmon", "trying", "the kernel "),
        ("bpf,+perfmon", "trying", "the kernel "),
        ("bpf,+net_admin", "trying", "the kernel "),
    ],
)
def test_the_components_capabilities_are_necessary_and_sufficient(
    kernel: KernelNode, capabilities: str, how: str, answer: str
) -> None:
    limited = ["setpriv", f"--inh-caps=-all,+{capabilities}", f"--bounding-set=-all,+{capabilities}"]
    python = command(denying.denies, str(kernel.bpf), str(kernel.cgroups), kernel.uid, how)
    result = subprocess.run([*limited, *python], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout.startswith(answer)
