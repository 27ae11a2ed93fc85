"""`cordon` against a kubectl that answers like an API server; test_apiserver.py has the real one."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import codec, gpunode
from gpushare.gpunode import CordonNote
from tests import builders
from tests.kubectl_gpushare.conftest import Plugin

WHO = """echo '{"status": {"userInfo": {"username": "ann"}}}'"""
NODE = codec.to_document(builders.node("node-a")) | {"kind": "GPUNode"}


@pytest.fixture
def server(fake_kubectl: Callable[[str], str], tmp_path: Path) -> Callable[..., str]:
    """Make a kubectl that returns the node and stores patches; the first `conflicts` patches fail.

    notes: annotations of the node; knows: whether the API server reports the user's name, `ann`.
    """

    def make(
        *,
        conflicts: int = 0,
        cordoned: tuple[str, ...] = (),
        notes: Mapping[str, str] | None = None,
        knows: bool = True,
    ) -> str:
        metadata = {"name": "node-a", "resourceVersion": "7", "annotations": notes or {}}
        document = {**NODE, "metadata": metadata, "spec": {"cordoned": [*cordoned]}}
        (tmp_path / "list.json").write_text(json.dumps({"kind": "GPUNodeList", "items": [document]}))
        (tmp_path / "count").write_text("0")
        return fake_kubectl(f"""
            cd {tmp_path}
            if [ "$1" = get ]; then cat list.json; exit; fi
            if [ "$1" = create ]; then {WHO if knows else "echo 'Error from server (NotFound)' >&2; exit 1"}; exit; fi
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


def test_a_gpu_is_cordoned_by_compare_and_swap(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    ended = plugin("cordon", "gpu", "node-a/1", KUBECTL_PATH=server(cordoned=("GPU-node-a-0",)))
    assert (ended.code, ended.out, ended.err) == (0, "node-a/1 cordoned\n", "")
    words = patched(tmp_path)
    assert words[:4] == ["patch", "gpunodes.gpushare.io", "node-a", "--type=merge"]
    patch = json.loads(words[4].removeprefix("--patch="))
    assert patch["spec"] == {"cordoned": ["GPU-node-a-0", "GPU-node-a-1"]}
    assert patch["metadata"]["resourceVersion"] == "7"
    (note,) = gpunode.read_cordon_notes(patch["metadata"]["annotations"]).items()
    assert note == ("GPU-node-a-1", CordonNote("ann", note[1].at))
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(note[1].at)
    assert -1 <= age.total_seconds() < 600


def noted(tmp_path: Path) -> dict[str, tuple[str, str]]:
    """Return user and reason by UUID, as patched; two empty texts for a removed note."""
    annotations = json.loads(patched(tmp_path)[4].removeprefix("--patch="))["metadata"].get("annotations", {})
    notes = gpunode.read_cordon_notes({key: value or "" for key, value in annotations.items()})
    return {uuid: (note.by, note.reason) for uuid, note in notes.items()}


def test_reason_is_stored_with_the_cordon(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    program = server(cordoned=("GPU-node-a-0",))
    assert plugin("cordon", "gpu", "node-a/1", "--reason", " ECC\nerrors ", KUBECTL_PATH=program).code == 0
    assert noted(tmp_path) == {"GPU-node-a-1": ("ann", "ECC errors")}
    assert plugin("cordon", "gpu", "node-a/0", "--reason", "fan", KUBECTL_PATH=program).code == 0
    assert noted(tmp_path) == {"GPU-node-a-0": ("ann", "fan")}


def test_cordon_works_without_a_known_user(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    assert plugin("cordon", "gpu", "node-a/1", "--reason", "fan", KUBECTL_PATH=server(knows=False)).code == 0
    assert noted(tmp_path) == {"GPU-node-a-1": ("", "fan")}


def test_all_gpus_of_a_node_are_cordoned_at_once(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    ended = plugin("cordon", "node", "node-a", "--reason", "moves", KUBECTL_PATH=server(cordoned=("GPU-node-a-1",)))
    names = [f"node-a/{index} {'already ' if index == 1 else ''}cordoned" for index in range(4)]
    assert (ended.code, ended.out.splitlines()) == (0, names)
    assert noted(tmp_path) == {f"GPU-node-a-{index}": ("ann", "moves") for index in range(4)}
    program = server()
    (tmp_path / "list.json").write_text('{"kind": "GPUNodeList", "items": []}')
    ended = plugin("cordon", "node", "nowhere", KUBECTL_PATH=program)
    assert (ended.code, ended.err.startswith('error: no node "nowhere" with GPUs')) == (1, True)


def test_note_is_removed_with_the_cordon(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    notes = gpunode.cordon_annotations({"GPU-node-a-1": CordonNote("bob", "2026-03-01T12:00:00Z", "fan")})
    program = server(cordoned=("GPU-node-a-1", "GPU-node-a-2"), notes={key: text or "" for key, text in notes.items()})
    page = plugin("describe", "gpu", "node-a/1", KUBECTL_PATH=program).out
    assert "by bob at 2026-03-01T12:00:00Z: fan" in page
    assert "cordoned by bob at 2026-03-01T12:00:00Z: fan; node node-a is not ready" in " ".join(
        plugin("top", "-o", "wide", "--no-usage", KUBECTL_PATH=program).out.split()
    )
    assert plugin("uncordon", "node", "node-a", KUBECTL_PATH=program).code == 0
    assert noted(tmp_path) == {"GPU-node-a-1": ("", "")}


@given(st.builds(CordonNote, by=st.text(), at=st.text(), reason=st.text()))
def test_note_survives_a_round_trip(note: CordonNote) -> None:
    assert gpunode.read_cordon_notes(gpunode.cordon_annotations({"GPU-a": note})) == {"GPU-a": note}


@pytest.mark.parametrize("text", ["fan is loud", "{", '{"by": "ann"}', "[]", "[" * 100_000])
def test_hand_written_note_is_a_reason(text: str) -> None:
    assert gpunode.read_cordon_notes({"cordon.gpushare.io/GPU-a": text, "other": "x"}) == {
        "GPU-a": CordonNote(reason=text)
    }


def test_uncordon_keeps_other_gpus_cordoned(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    program = server(cordoned=("GPU-node-a-0", "GPU-node-a-2"))
    ended = plugin("uncordon", "GPU-node-a-2", "--dry-run", KUBECTL_PATH=program)
    assert ended.out == "node-a/2 uncordoned (dry run)\n"
    words = patched(tmp_path)
    assert json.loads(words[4].removeprefix("--patch="))["spec"] == {"cordoned": ["GPU-node-a-0"]}
    assert "--dry-run=server" in words


def test_no_write_without_a_change(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    ended = plugin("uncordon", "gpu", "node-a/1", KUBECTL_PATH=server())
    assert (ended.code, ended.out) == (0, "node-a/1 already uncordoned\n")
    assert patched(tmp_path) == []


def test_conflict_is_retried_a_few_times(plugin: Plugin, server: Callable[..., str], tmp_path: Path) -> None:
    assert plugin("cordon", "gpu", "node-a/1", KUBECTL_PATH=server(conflicts=2)).code == 0
    ended = plugin("cordon", "gpu", "node-a/1", KUBECTL_PATH=server(conflicts=99))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: it was changed at the same time")


def test_cordon_of_a_missing_gpu_is_an_error(plugin: Plugin, server: Callable[..., str]) -> None:
    ended = plugin("cordon", "gpu", "node-a/9", KUBECTL_PATH=server())
    assert (ended.code, ended.err.startswith('error: no GPU "node-a/9"')) == (1, True)


def test_saved_objects_cannot_be_cordoned(plugin: Plugin, saved: Path) -> None:
    ended = plugin("cordon", "gpu", "gpu-1/0", "--from", saved)
    assert (ended.code, ended.err.splitlines()[0]) == (
        1,
        "error: cordon needs a cluster: files of --from are only read",
    )
