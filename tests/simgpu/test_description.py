"""A description turns into GPUs, or into one sentence that says what to change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.programs import command
from tests.simgpu.conftest import COMMAND, ROOT, Node
from tests.simgpu.programs import description as programs

GOOD = """\
[node]
name = node
[gpu 0]
model = NVIDIA L4
memory = 24GiB
compute-capability = 8.9
"""

BAD = {
    "memory in other units": ("memory = 24GiB", "memory = 24GB", 5, 'invalid memory = "24GB": write bytes'),
    "no memory at all": ("memory = 24GiB", "memory = 0", 5, 'memory = "0"'),
    "unknown key": ("model =", "modell =", 4, "the keys of this section are count, model, memory"),
    "key of another section": ("name = node", "memory = 1GiB", 2, "the keys of this section are name, driver-version"),
    "section": ("[gpu 0]", "[gpu zero]", 3, "write [node], or [gpu N]"),
    "no equals sign": ("model = NVIDIA L4", "model", 4, "write key = value"),
    "key before a section": ("[node]", "", 2, "is outside any section"),
    "missing model": ("model = NVIDIA L4", "", 3, "[gpu 0] has no model: add one"),
    "missing capability": ("compute-capability = 8.9", "", 3, "has no compute-capability"),
    "uuid": ("model =", "uuid = GPU-1\nmodel =", 4, "or remove it to have one derived"),
    "count of none": ("model =", "count = 0\nmodel =", 4, "a number from 1 to 64"),
    "too many": ("[gpu 0]", "[gpu 63]\ncount = 2", 3, "exceeds 64 GPUs"),
    "twice": (
        "[gpu 0]",
        "[gpu 0]\nmodel = A\nmemory = 1\ncompute-capability = 1.0\n[gpu 0]",
        7,
        "GPU 0 has two sections",
    ),
    "capability": ("8.9", "8", 6, "major.minor, such as 8.0"),
    "bus": ("model =", "pci-bus-id = 7\nmodel =", 4, "domain:bus:00.0"),
    "fabric": ("model =", "fabric = 1.2\nmodel =", 4, "CLUSTER.CLIQUE, with a UUID in lower case"),
    "links": ("model =", "nvlink = 1,x\nmodel =", 4, "all, none, or the GPUs' numbers"),
}


def create(path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, "create", *more, path, path.parent / "gpus"], capture_output=True, text=True)


@pytest.mark.parametrize(("before", "after", "line", "sentence"), BAD.values(), ids=BAD.keys())
def test_error_contains_line_key_and_remedy(tmp_path: Path, before: str, after: str, line: int, sentence: str) -> None:
    description = tmp_path / "node.ini"
    assert before in GOOD
    description.write_text(GOOD.replace(before, after))
    result = create(description)
    assert result.returncode == 1
    assert result.stderr.startswith(f"simgpu: {description}:{line}: ")
    assert sentence in result.stderr
    assert not (tmp_path / "gpus").exists(), "no partial result"


def test_missing_file_is_reported(tmp_path: Path) -> None:
    assert "none.ini: No such file or directory" in create(tmp_path / "none.ini").stderr


def test_each_gpu_is_a_file_named_by_number_and_uuid(tmp_path: Path) -> None:
    description = tmp_path / "node.ini"
    description.write_text(GOOD.replace("[gpu 0]", "[gpu 3]\ncount = 2"))
    assert create(description).returncode == 0
    names = sorted(path.name for path in (tmp_path / "gpus").glob("gpu*"))
    assert [name[:9] for name in names] == ["gpu3-GPU-", "gpu4-GPU-"]
    assert len({name[5:] for name in names}) == 2


def test_uuids_are_stable_and_differ_between_nodes(tmp_path: Path) -> None:
    description = tmp_path / "node.ini"
    description.write_text(GOOD)
    names = []
    for more in ([], [], ["--node", "other"]):
        assert create(description, "--replace", *more).returncode == 0
        (path,) = (tmp_path / "gpus").glob("gpu*")
        names.append(path.name)
    assert names[0] == names[1] != names[2]


def test_existing_gpus_are_not_overwritten(tmp_path: Path) -> None:
    description = tmp_path / "node.ini"
    description.write_text(GOOD)
    assert create(description).returncode == 0
    result = create(description)
    assert result.returncode == 1
    assert "already contains GPUs: remove them, or use --replace" in result.stderr


def test_described_uuid_is_used(tmp_path: Path) -> None:
    uuid = "GPU-00112233-4455-6677-8899-aabbccddeeff"
    description = tmp_path / "node.ini"
    description.write_text(GOOD.replace("model =", f"uuid = {uuid}\nmodel ="))
    assert create(description).returncode == 0
    assert [path.name for path in (tmp_path / "gpus").glob("gpu*")] == [f"gpu0-{uuid}"]


@pytest.mark.parametrize("sample", sorted((ROOT / "simgpu" / "samples").glob("*.ini")), ids=lambda path: path.name)
def test_every_sample_is_valid(tmp_path: Path, sample: Path) -> None:
    result = subprocess.run([COMMAND, "create", sample, tmp_path / "gpus"], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    shown = subprocess.run([COMMAND, "show", tmp_path / "gpus"], capture_output=True, text=True, check=True).stdout
    assert shown.count("health    ok") == 4


def test_context_takes_the_described_memory_and_frees_it(tmp_path: Path) -> None:
    description = tmp_path / "node.ini"
    description.write_text(GOOD.replace("memory =", "context-memory = 300MiB\nmemory ="))
    assert create(description).returncode == 0
    shown = Node(tmp_path / "gpus").run(command(programs.contexts))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.split() == [str(mib << 20) for mib in (300, 600, 300, 0)]
