"""`defrag --apply` uncordons the GPUs that it has cordoned, and no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare import codec
from kubectl_gpushare import kubectl, moving, plugin_errors
from kubectl_gpushare.source import live_cluster
from tests import builders
from tests.kubectl_gpushare import owners

pytestmark = pytest.mark.slow

Keeping = Callable[[str], tuple[moving.TemporaryCordon, list[str]]]


@pytest.fixture
def keeping(tmp_path: Path) -> Keeping:
    """Make a TemporaryCordon on the nodes n0 and n1 with two GPUs each, and collect its messages."""

    def make(mode: str) -> tuple[moving.TemporaryCordon, list[str]]:
        program, path = owners.program(tmp_path, mode), tmp_path / "state.json"
        state = json.loads(path.read_text())
        state["gpunodes"].append(codec.to_document(builders.node("n1", gpus=2)))
        path.write_text(json.dumps(state))
        said: list[str] = []
        return moving.TemporaryCordon(live_cluster.LiveCluster(kubectl.Kubectl(program=program)), said.append), said

    return make


BOTH = (("n0", "GPU-n0-0"), ("n1", "GPU-n1-0"))


def test_other_nodes_are_uncordoned_if_one_fails(keeping: Keeping, tmp_path: Path) -> None:
    keeper, said = keeping("locked")
    with pytest.raises(plugin_errors.KubectlError, match="timed out"), keeper.kept():
        keeper.close(BOTH, seconds=60)
    nodes = json.loads((tmp_path / "state.json").read_text())["gpunodes"]
    assert [node["spec"]["cordoned"] for node in nodes] == [["GPU-n0-0"], []]
    assert "warning: 1 GPU of n0 may be left cordoned" in said[2]
    assert said[3] == "uncordoned 1 GPU of n1 again"


def test_admins_cordon_is_not_reported_as_removed(keeping: Keeping, tmp_path: Path) -> None:
    keeper, said = keeping("placed")
    state = json.loads((tmp_path / "state.json").read_text())
    state["gpunodes"][1]["spec"]["cordoned"] = ["GPU-n1-0"]
    (tmp_path / "state.json").write_text(json.dumps(state))
    with keeper.kept():
        keeper.close(BOTH, seconds=60)
    assert owners.log(tmp_path)[-1] == ["cordoned"]
    assert said == ["cordoned 1 GPU of n0 for the time being", "uncordoned 1 GPU of n0 again"]


def test_renewed_cordon_is_kept(tmp_path: Path) -> None:
    origin = live_cluster.LiveCluster(kubectl.Kubectl(program=owners.program(tmp_path, "placed")))
    owners.mark(tmp_path, "GPU-n0-1", "1f2e3d4c.20260301T120000Z")
    seen, said = origin.gpu_nodes(), list[str]()
    owners.mark(tmp_path, "GPU-n0-1", "1f2e3d4c.29990301T120000Z")
    moving.clean_up(origin, seen, said.append)
    assert (said, owners.log(tmp_path), len(owners.labels(tmp_path))) == ([], [], 1)
