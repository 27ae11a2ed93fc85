"""For which pods devices are denied."""

from __future__ import annotations

import pytest

from deviceplugin.denial import denied_pods
from gpushare import contract
from tests import builders


@pytest.mark.parametrize(("amount", "is_denied"), [("0", True), ("0m", True), ("1", False)])
def test_an_amount_of_zero_gives_no_other_gpu(amount: str, is_denied: bool) -> None:
    manifest = builders.pod(request="0.5", containers=("main", "side"))
    manifest["metadata"]["uid"] = "uid-1"
    manifest["metadata"]["annotations"][contract.ALLOCATION] = "a1"
    manifest["spec"]["containers"][1]["resources"] = {"limits": {"nvidia.com/gpu": amount}}
    chosen = denied_pods.choose([manifest])
    assert (chosen.uids, bool(chosen.left_out)) == ((frozenset({"uid-1"}), False) if is_denied else (frozenset(), True))
