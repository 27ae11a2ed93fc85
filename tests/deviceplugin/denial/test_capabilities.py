"""Which capabilities the agent needs to deny anybody a device: those that the component adds, and no fewer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.deviceplugin.denial.kernel_node import KernelNode

ROOT = Path(__file__).parents[3]
DENY = """
import sys
from pathlib import Path
from deviceplugin.denial import denial, registered
if "trying" in sys.argv.pop():  # the kernel is to say it, and not we
    denial.kernel_process.missing_capabilities = lambda *_, **__: ()
bpf, cgroups, uid = sys.argv[1:]
try:
    for majors in {10}, {10, 195}:  # the second in place of the first
        made = denial.opened(Path(bpf), Path(cgroups), proc=Path("/proc"), majors=majors)
        known = registered.RegisteredMap(made.map_descriptor)
        known.beat()
        known.add(1, 1)
        known.keep([])
        print(len(made.attach([uid])))
except denial.DenialError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("capabilities", "how", "answer"),
    [
        ("bpf,+net_admin,+perfmon", "looking", "1\n1\n"),
        ("sys_admin", "looking", "1\n1\n"),
        ("net_admin,+perfmon", "looking", "the agent lacks BPF of its"),
        ("bpf,+perfmon", "looking", "the agent lacks NET_ADMIN of its"),
        ("bpf,+net_admin", "looking", "the agent lacks PERFMON of its"),
        ("net_admin,+perfmon", "trying", "the kernel "),
        ("bpf,+perfmon", "trying", "the kernel "),
        ("bpf,+net_admin", "trying", "the kernel "),
    ],
)
def test_it_takes_those_that_the_component_adds(kernel: KernelNode, capabilities: str, how: str, answer: str) -> None:
    command = ["setpriv", f"--inh-caps=-all,+{capabilities}", f"--bounding-set=-all,+{capabilities}"]
    python = [sys.executable, "-c", DENY, kernel.bpf, kernel.cgroups, kernel.uid, how]
    result = subprocess.run(
        [*command, *map(str, python)], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert result.stdout.startswith(answer)
