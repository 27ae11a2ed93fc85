"""Cgroups as kubelets and container runtimes name them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import Container
from gpushare.refusal import Refusal

UID = "4c8f9f3e-7a0b-4d0e-9b7d-0c5b8a1f2e3d"
UNDERSCORED = UID.replace("-", "_")
ID = "5d" * 32
OTHER_UID = "11111111-2222-3333-4444-555555555555"
OTHER_ID = "ab" * 32
OURS = Container(UID, ID)
# Cgroup names that a container may make below its own: also those of kubelet and runtime, and line separators.
OTHERS = (
    f"pod{OTHER_UID}/{OTHER_ID}",
    f"kubepods-pod{OTHER_UID.replace('-', '_')}.slice/crio-{OTHER_ID}.scope",
    f"kubepods-pod{OTHER_UID.replace('-', '_')}.slice:cri-containerd:{OTHER_ID}",
)
ENDS_OF_LINES = "\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
NAMES = st.text(st.characters(exclude_characters="/\n"), min_size=1, max_size=20)
BELOW = st.one_of(
    NAMES,
    st.sampled_from(OTHERS),
    st.builds(
        "{}{}{}:/{}".format,
        NAMES,
        st.sampled_from(ENDS_OF_LINES),
        st.sampled_from(("0:", "4:memory")),
        st.sampled_from(OTHERS),
    ),
)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(f"/kubepods/pod{UID}/{ID}", id="cgroupfs, guaranteed"),
        pytest.param(f"/kubepods/besteffort/pod{UID}/{ID}", id="cgroupfs, best effort"),
        pytest.param(f"/outer/kubepods/burstable/pod{UID}/{ID}", id="below --cgroup-root"),
        pytest.param(f"/kubelet.slice/kubelet-kubepods.slice/kubepods-pod{UNDERSCORED}.slice/{ID}", id="nested slices"),
        pytest.param(
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
            id="systemd, containerd",
        ),
        pytest.param(f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{ID}.scope", id="systemd, CRI-O"),
        pytest.param(f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/docker-{ID}.scope", id="systemd, cri-dockerd"),
        pytest.param(f"/kubepods-besteffort-pod{UNDERSCORED}.slice:cri-containerd:{ID}", id="runc's systemd notation"),
        pytest.param(f"/../../pod{UID}/{ID}", id="seen from a cgroup namespace, cgroupfs"),
        pytest.param(f"/../../../kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope", id="… systemd"),
        pytest.param(f"/../../../besteffort/pod{UID}/{ID}", id="… of another class"),
        pytest.param(f"/kubepods-pod{UNDERSCORED}.slice/crio-{ID}.scope/container", id="CRI-O on version two"),
        pytest.param(f"/kubepods-pod{UNDERSCORED}.slice/libpod-{ID}.scope", id="systemd, Podman"),
        pytest.param(f"/docker/{OTHER_ID}/kubelet/kubepods/pod{UID}/{ID}", id="a node that is a container itself"),
        pytest.param(
            f"/system.slice/docker-{OTHER_ID}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
            f"/kubelet-kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
            id="kind, systemd",
        ),
        pytest.param(
            f"/../../../../kubelet-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope", id="… from a namespace"
        ),
        pytest.param(f"/docker/{OTHER_ID}/kubelet/kubepods/besteffort/pod{UID}/{ID}", id="kind, cgroupfs"),
        pytest.param(
            f"/libpod_parent/libpod-{OTHER_ID}/kubelet/kubepods/pod{UID}/{ID}", id="minikube and kind by Podman"
        ),
        pytest.param(f"/k3s/kubepods/burstable/pod{UID}/{ID}", id="k3s in a container"),
        pytest.param(f"/kubepods/burstable/pod{UID}/crio-{ID}", id="cgroupfs, CRI-O"),
        pytest.param(f"/kubepods/burstable/pod{UID}/crio-{ID}/container", id="cgroupfs, CRI-O with crun"),
        pytest.param(f"/../../besteffort/pod{UID}/crio-{ID}", id="… from a namespace, cgroupfs"),
        pytest.param(f"/../crio-{ID}.scope/kubepods-pod{UNDERSCORED}.slice/crio-{ID}.scope", id="agent in a container"),
        pytest.param(f"/kubepods/pod{UID}/{ID}/init.scope/worker", id="cgroups of the container's own"),
        pytest.param(f"/kubepods/pod{UID}/{ID}/kubepods/pod{OTHER_UID}/{OTHER_ID}", id="pretending to be another"),
    ],
)
def test_a_container_is_identified_by_its_cgroup(path: str) -> None:
    assert kernel_process.container_of(f"0::{path}\n") == OURS


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/user.slice/user-1000.slice/session-2.scope",
        f"/system.slice/docker-{ID}.scope",
        f"/mykubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
        f"/machine.slice/libpod-{ID}.scope/container",
        f"/system.slice/pod-manager.service/{ID}",
        "",
    ],
)
def test_processes_outside_a_pods_container_are_refused(path: str) -> None:
    assert kernel_process.container_of(f"0::{path}\n") == kernel_process.IN_NO_POD


@pytest.mark.parametrize(
    "path",
    [
        "/kubepods",
        "/kubepods.slice/kubepods-besteffort.slice/x",
        f"/../../pod{UID.replace('-', '')}/{ID}",
        f"/kubepods/pod{UID}/{ID} (deleted)",
        f"/kubepods/pod{UID}",
        f"/kubepods/pod{UID}/",
        f"/kubepods/pod{UID}/{ID[:-1]}",
        f"/kubepods/pod{UID}/worker/{ID}",
        f"/kubepods/pod{UID}x/{ID}",
        f"/kubepods/xpod{UID}/{ID}",
        f"/kubepods/pod{OTHER_UID}/scratch/pod{UID}/{ID}",
        f"/kubepods/burstable/pod{UID}/crio-conmon-{ID}",
        # a static pod, which cannot have a share: a hash in place of a UID
        f"/kubepods/pod{UID.replace('-', '')}/{ID}",
        f"/kubepods-pod{UNDERSCORED}.slice/crio-conmon-{ID}.scope",  # CRI-O's own process next to the container
        f"/system.slice/containerd.service/kubepods-pod{UNDERSCORED}.slice:cri-containerd:{ID[:-1]}",
        f"/kubepods/pod{UID}/../pod{OTHER_UID}/{ID}",
    ],
)
def test_an_unknown_form_below_kubepods_is_not_mistaken_for_the_host(path: str) -> None:
    assert kernel_process.container_of(f"0::{path}\n") == kernel_process.NOT_UNDERSTOOD


def test_hierarchies_of_cgroup_v1_agree() -> None:
    mixed = f"9:name=systemd:/\n4:memory:/kubepods/pod{UID}/{ID}\n1:cpu,cpuacct:/kubepods/pod{UID}/{ID}\n0::/\n"
    assert kernel_process.container_of(mixed) == OURS


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            f"13:freezer:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/crio-{ID}.scope\n"
            f"11:files:/\n"
            f"1:name=systemd:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/crio-{ID}.scope\n",
            id="version one, CRI-O",
        ),
        pytest.param(
            f"2:memory:/kubepods/besteffort/pod{UID}/{ID}\n1:name=systemd:/kubepods/besteffort/pod{UID}/{ID}\n"
            f"0::/system.slice/containerd.service\n",
            id="hybrid: the unified hierarchy does not take part",
        ),
        pytest.param(
            f"3:rdma:/\n2:cpuset:/../../pod{UID}/{ID}\n1:pids:/../../pod{UID}/{ID}\n0::/../../pod{UID}/{ID}\n",
            id="hybrid, from a namespace of the agent's own",
        ),
        pytest.param(
            f"0::/../../../kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice/crio-{ID}.scope/container\n",
            id="version two, CRI-O with crun, from a namespace",
        ),
    ],
)
def test_whole_texts_as_kernels_write_them(text: str) -> None:
    assert kernel_process.container_of(text) == OURS


def test_contradicting_hierarchies_are_refused() -> None:
    text = f"4:memory:/kubepods/pod{UID}/{ID}\n1:cpu:/kubepods/pod{OTHER_UID}/{OTHER_ID}\n"
    assert kernel_process.container_of(text) == kernel_process.IN_SEVERAL


@given(st.text())
def test_no_text_makes_it_fail(text: str) -> None:
    assert isinstance(kernel_process.container_of(text), Refusal)


@pytest.mark.slow
@given(st.lists(BELOW, max_size=6), st.sampled_from([f"/kubepods/pod{UID}/{ID}", f"/../pod{UID}/crio-{ID}"]))
def test_cgroups_below_a_container_do_not_change_its_identity(below: list[str], own: str) -> None:
    assert kernel_process.container_of("0::" + "/".join([own, *below]) + "\n") == OURS
