"""Which pods have the program attached, when, and with which condition: on real cgroups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.allocation import answer
from deviceplugin.arbiter import tenant
from deviceplugin.denial import pod_denial
from deviceplugin.denial.kernel import RegisteredMap
from deviceplugin.injection import decision
from deviceplugin.injection.decision import InjectionFacts
from deviceplugin.kubelet import plugin_service, share_answers
from deviceplugin.state import pod_resources
from gpushare import contract
from gpushare.allocation import MigInstance
from gpushare.config.node_settings import NodeSettings
from gpushare.refusal import Refusal
from tests import builders
from tests.deviceplugin.denial.kernel_node import KernelNode

PERCENT = contract.RESOURCE_PERCENT
BY_DEFAULT = decision.decide(
    InjectionFacts(True, "containerd://1.6.20", "", driver_requested=True, driver_mounted=True, cdi_problem="no"), ()
)


def manifest(name: str, uid: str = "", *, allocation: str = "a", **container: Any) -> dict[str, Any]:
    annotations = {contract.ALLOCATION: allocation} if allocation else {}
    metadata = {"namespace": "ml", "name": name, "uid": uid or name, "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main"}, {"name": "other", **container}]}}


def test_pods_with_shares_are_chosen_except_those_that_may_have_whole_gpus() -> None:
    whole = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    claimed = {"resources": {"claims": [{"name": "gpu"}]}}
    ended = {**manifest("ended"), "status": {"phase": "Succeeded"}}
    choice = pod_denial.choose(
        [
            manifest("one"),
            manifest("none", allocation="", **whole),
            manifest("mixed", **whole),
            manifest("claims", **claimed),
            manifest("other", resources={"limits": {"cpu": "1"}}),
            ended,
        ]
    )
    assert choice == pod_denial.Chosen(frozenset({"one", "other"}), ("ml/claims", "ml/mixed"))


def test_conditions() -> None:
    assert pod_denial.condition("", ()).status == "True"
    condition = pod_denial.condition("", ("ml/claims", "ml/mixed"))
    assert (condition.status, condition.message.rpartition(", except ")[2]) == (
        "True",
        "in ml/claims, ml/mixed: another container there may have whole GPUs",
    )
    impossible = pod_denial.condition("there is no cgroup v2", ())
    assert (impossible.status, impossible.reason) == ("False", "NotPossible")
    assert impossible.message.startswith("there is no cgroup v2; ")
    assert impossible.trouble == "NotUnregisteredDenied"


class NoMig:
    """A node whose GPUs are all whole."""

    async def device(self, uuid: str, device: MigInstance) -> Refusal:
        return Refusal(f"{uuid} has no {device}")

    async def whole(self, uuid: str) -> None:
        """Return at once."""


class Holding:
    """The kubelet's and the ledger's view of one container, or none; `start` is the kubelet's call before creating
    it.
    """

    def __init__(self, kernel: KernelNode, made: pod_denial.PodDenial) -> None:
        self.given: tenant.StartingContainer | Refusal = tenant.StartingContainer(
            "ml", "trainer", ("GPU-1",), "", kernel.uid
        )
        self.start = share_answers.ShareStart(
            injection=lambda: BY_DEFAULT,
            settings=NodeSettings,
            held=self._held,
            find=self._given,
            descriptions=Nothing(),
            denied=made,
            memory_limits=NoLimits(),
            mps=self._mps,
            mig=NoMig(),
        )

    async def _held(self) -> Sequence[pod_resources.ContainerDevices]:
        return [pod_resources.ContainerDevices("ml", "trainer", "main", PERCENT, ("id",))]

    async def _mps(self, uuid: str, share: str) -> Refusal:
        return Refusal(f"{uuid} has no MPS daemon for {share}")

    async def _given(self, *_: str) -> tenant.StartingContainer | Refusal:
        return self.given


class NoLimits:
    """A driver that keeps no memory limits."""

    def is_needed(self) -> bool:
        return False

    async def cover(self, pod_uid: str) -> str:
        raise AssertionError(pod_uid)


class Nothing:
    """A strategy that describes no devices."""

    def has_share(self, name: str) -> bool:
        raise AssertionError(name)

    def write_share(self, name: str, uuids: Sequence[str], settings: NodeSettings) -> None:
        raise AssertionError(name, uuids, settings)

    def remove_share(self, name: str) -> None:
        raise AssertionError(name)

    def keep_only_shares(self, kept: object) -> None:
        assert kept == {answer.cdi_share_name(["id"])}


def covered(kernel: KernelNode, *known: dict[str, Any]) -> pod_denial.PodDenial:
    made = kernel.opened()
    RegisteredMap(made.map_descriptor).renew()
    return pod_denial.PodDenial(made, "", pods=lambda: known)


async def test_a_pod_is_covered_before_its_container_is_created(kernel: KernelNode) -> None:
    holding = Holding(kernel, covered(kernel, manifest("trainer", kernel.uid)))
    process = kernel.process()
    assert process.ask("open", kernel.device) == "yes"
    assert holding.start.is_needed
    await holding.start(PERCENT, ["id"])
    assert process.ask("open", kernel.device) == "EPERM"


async def test_a_starting_init_container_covers_the_known_pods(kernel: KernelNode) -> None:
    holding = Holding(kernel, covered(kernel, manifest("trainer", kernel.uid)))
    holding.given = Refusal("the kubelet does not say")
    await holding.start(PERCENT, ["id"])
    assert kernel.process().ask("open", kernel.device) == "EPERM"


async def test_a_container_that_could_not_be_covered_is_not_created(kernel: KernelNode) -> None:
    holding = Holding(kernel, covered(kernel, manifest("trainer", "11111111-2222-3333-4444-555555555555")))
    holding.given = tenant.StartingContainer("ml", "trainer", ("GPU-1",), "", "11111111-2222-3333-4444-555555555555")
    with pytest.raises(plugin_service.AllocateRefusedError, match=r"the cgroup of the pod 11111111-.* was not found"):
        await holding.start(PERCENT, ["id"])


async def test_a_pod_unknown_to_the_agent_waits(kernel: KernelNode) -> None:
    holding = Holding(kernel, covered(kernel))
    with pytest.raises(plugin_service.AllocateRefusedError, match="is not known to the agent yet"):
        await holding.start(PERCENT, ["id"])


async def test_a_pod_with_whole_gpus_too_is_left_out_and_reported(kernel: KernelNode) -> None:
    whole = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    made = covered(kernel, manifest("trainer", kernel.uid, **whole))
    await Holding(kernel, made).start(PERCENT, ["id"])
    assert kernel.process().ask("open", kernel.device) == "yes"
    (condition,) = made.conditions
    assert "ml/trainer" in condition.message


def test_where_denial_is_impossible_it_is_off_and_says_why(tmp_path: Path) -> None:
    changes: list[int] = []
    with pod_denial.opened(
        tmp_path, tmp_path, proc=Path("/proc"), wanted=True, pods=tuple, changed=lambda: changes.append(1)
    ) as guard:
        assert not guard.is_on
        guard.cover("anybody")
        (condition,) = guard.conditions
        assert changes == [1]
    assert "is not cgroup v2" in condition.message or "pid namespace" in condition.message


def test_with_cgroup_v2_next_to_v1_the_error_names_the_option(kernel: KernelNode, tmp_path: Path) -> None:
    with pytest.raises(pod_denial.DenialError) as error:
        pod_denial.load_program(kernel.bpf, tmp_path, proc=Path("/proc"))
    assert str(error.value).endswith("which denying devices needs")
    (tmp_path / pod_denial.BESIDE_V1).symlink_to(kernel.cgroups)
    with pytest.raises(
        pod_denial.DenialError, match=f"; cgroup v2 is at {tmp_path}/unified: set --cgroup-root={tmp_path}/"
    ):
        pod_denial.load_program(kernel.bpf, tmp_path, proc=Path("/proc"))


def test_without_a_bpf_file_system_it_is_off(kernel: KernelNode, tmp_path: Path) -> None:
    with pytest.raises(pod_denial.DenialError, match="no bpf file system is mounted at"):
        pod_denial.load_program(tmp_path, kernel.cgroups, proc=Path("/proc"))


def test_without_the_option_there_is_no_condition(tmp_path: Path) -> None:
    with pod_denial.opened(tmp_path, tmp_path, proc=Path("/proc"), wanted=False, pods=tuple, changed=list) as guard:
        assert (guard.is_on, guard.conditions, guard.map_descriptor) == (False, (), None)


def test_a_kernel_that_forbids_loading_is_reported_with_missing_capabilities(kernel: KernelNode) -> None:
    with pytest.raises(pod_denial.DenialError, match=r"the agent lacks the capabilities BPF, NET_ADMIN, PERFMON"):
        pod_denial.load_program(kernel.bpf, kernel.cgroups, proc=without_capabilities(kernel.bpf.parent))


def without_capabilities(directory: Path) -> Path:
    """Return a /proc in which this process has no capabilities."""
    proc = directory / "proc"
    (proc / "self" / "ns").mkdir(parents=True)
    (proc / "self" / "ns" / "pid").symlink_to(Path("/proc/self/ns/pid").readlink())
    (proc / "self" / "status").write_text("CapEff:\t0000000000000000\n")
    return proc


@pytest.mark.parametrize(("amount", "is_denied"), [("0", True), ("0m", True), ("1", False)])
def test_an_amount_of_zero_gives_no_other_gpu(amount: str, is_denied: bool) -> None:
    other = builders.pod(request="0.5", containers=("main", "side"))
    other["metadata"]["uid"] = "uid-1"
    other["metadata"]["annotations"][contract.ALLOCATION] = "a1"
    other["spec"]["containers"][1]["resources"] = {"limits": {"nvidia.com/gpu": amount}}
    chosen = pod_denial.choose([other])
    assert (chosen.uids, bool(chosen.left_out)) == ((frozenset({"uid-1"}), False) if is_denied else (frozenset(), True))
