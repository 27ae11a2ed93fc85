"""Cordoning against a kubectl that answers as an API server does; on a real one in test_apiserver.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare import codec
from tests import builders
from tests.kubectl_gpushare.conftest import Plugin

NODE = codec.to_document(builders.node("node-a")) | {"kind": "GPUNode"}


@pytest.fixture
def server(fake_kubectl: Callable[[str], str], tmp_path: Path) -> Callable[..., str]:
    """A kubectl that gives the node and keeps what it is told to patch; the first `conflicts` patches fail."""

    def make(*, conflicts: int = 0, cordoned: tuple[str, ...] = ()) -> str:
        document = {**NODE, "metadata": {"name": "node-a", "resourceVersion": "7"}, "spec": {"cordoned": [*cordoned]}}
        (tmp_path / "list.json").write_text(json.dumps({"kind": "GPUNodeList", "items": [document]}))
        (tmp_path / "count").write_text("0")
        return fake_kubectl(f"""
            cd {tmp_path}
            if [ "$1" = get ]; then cat list.json; exit; fi
            count=$(cat count); echo $((count + 1)) > count
            if [ "$count" -lt {conflicts} ]; then
                echo 'Error from server (Conflict): the object has been modified' >&2; exit 1
            fi
            printf '%s\\n' "$@" > patched
        """)

    return make


def patched(tmp_path: Path) -> list[str]:
    path = tmp_path / "patched"
    return path.read_text().splitlines() if path.exists() else []


def test_a_card_is_cordoned_by_compare_and_swap(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    ended = plugin("cordon", "gpu", "node-a/1", KUBECTL_PATH=server(cordoned=("GPU-node-a-0",)))
    assert (ended.code, ended.out, ended.err) == (0, "node-a/1 cordoned\n", "")
    words = patched(tmp_path)
    assert words[:4] == ["patch", "gpunodes.gpushare.io", "node-a", "--type=merge"]
    assert json.loads(words[4].removeprefix("--patch=")) == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"cordoned": ["GPU-node-a-0", "GPU-node-a-1"]},
    }


def test_uncordoning_leaves_the_others(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    program = server(cordoned=("GPU-node-a-0", "GPU-node-a-2"))
    ended = plugin("uncordon", "GPU-node-a-2", "--dry-run", KUBECTL_PATH=program)
    assert ended.out == "node-a/2 uncordoned (dry run)\n"
    words = patched(tmp_path)
    assert json.loads(words[4].removeprefix("--patch="))["spec"] == {"cordoned": ["GPU-node-a-0"]}
    assert "--dry-run=server" in words


def test_what_is_so_already_is_not_written(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    ended = plugin("uncordon", "gpu", "node-a/1", KUBECTL_PATH=server())
    assert (ended.code, ended.out) == (0, "node-a/1 already uncordoned\n")
    assert patched(tmp_path) == []


def test_a_conflict_is_tried_again_but_not_for_ever(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    assert plugin("cordon", "gpu", "node-a/1", KUBECTL_PATH=server(conflicts=2)).code == 0
    ended = plugin("cordon", "gpu", "node-a/1", KUBECTL_PATH=server(conflicts=99))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: somebody else has changed it at the same time")


def test_what_is_not_there_cannot_be_cordoned(plugin: Plugin, server: Callable[..., str]) -> None:
    ended = plugin("cordon", "gpu", "node-a/9", KUBECTL_PATH=server())
    assert (ended.code, ended.err.startswith('error: no GPU "node-a/9"')) == (1, True)


def test_saved_objects_cannot_be_cordoned(plugin: Plugin, saved: Path) -> None:
    ended = plugin("cordon", "gpu", "gpu-1/0", "--from", saved)
    assert (ended.code, ended.err.splitlines()[0]) == (
        1,
        "error: cordon needs a cluster: files of --from are only read",
    )
