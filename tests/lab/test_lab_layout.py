"""Several labs on one machine have separate directories, numbers and ports."""

from __future__ import annotations

import socket
from concurrent import futures
from pathlib import Path

import pytest

from lab import addresses, control_plane, image, kubelet, lab_errors, lab_layout, network, status

LAB = lab_layout.Layout(
    Path("/lab"), 7, 443, 10259, 10257, (lab_layout.Node("a", 0, 10250, 10248), lab_layout.Node("b", 1, 9, 8))
)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUSHARE_LAB", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_layout_survives_a_round_trip(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    lab = lab_layout.Layout(tmp_path / "lab", 7, 443, 10259, 10257, LAB.nodes)
    lab_layout.save(lab)
    assert lab_layout.load(tmp_path / "lab") == lab
    lab_layout.remove(tmp_path / "lab")
    assert not (tmp_path / "lab").exists()
    with pytest.raises(lab_errors.LabError, match="there is no lab in"):
        lab_layout.load(tmp_path / "lab")


def test_environment_names_the_simulated_gpus_of_each_node() -> None:
    exported = dict(line.removeprefix("export ").split("=", 1) for line in status.shell_environment(LAB).splitlines())
    assert [LAB.gpus(node) for node in LAB.nodes] == [Path(exported["LAB_GPUS"]) / name for name in ("a", "b")]


def test_directory_with_too_long_socket_paths_is_rejected() -> None:
    lab_layout.check(Path("/" + "a" * (lab_layout.MAX_SOCKET_PATH - lab_layout.MAX_SOCKET - 1)))
    with pytest.raises(lab_errors.LabError, match="choose a shorter --directory"):
        lab_layout.check(Path("/" + "a" * (lab_layout.MAX_SOCKET_PATH - lab_layout.MAX_SOCKET)))


def test_labs_get_unique_numbers_and_reuse_those_of_vanished_labs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "NUMBERS", range(1, 4))
    directories = [tmp_path / name for name in "abcd"]
    for directory in directories:
        directory.mkdir()
    numbers = [addresses.claim_number(directory) for directory in directories[:3]]
    assert sorted(numbers) == [1, 2, 3]
    assert addresses.claim_number(directories[0]) == numbers[0]
    with pytest.raises(lab_errors.LabError, match="all 3 lab numbers are taken"):
        addresses.claim_number(directories[3])
    directories[1].rmdir()
    assert addresses.claim_number(directories[3]) == numbers[1]
    addresses.release_number(numbers[0], directories[2])  # another lab's
    assert addresses.claim_number(directories[0]) == numbers[0]


def test_concurrent_labs_get_unique_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "NUMBERS", range(1, 9))
    for turn in range(10):
        directories = [tmp_path / f"{turn}-{name}" for name in "abcdefgh"]
        for directory in directories:
            directory.mkdir()
        with futures.ThreadPoolExecutor(len(directories)) as pool:
            numbers = list(pool.map(addresses.claim_number, directories))
        claimed = [(addresses.claims_directory() / str(number)).readlink() for number in numbers]
        assert claimed == directories
        for directory in directories:
            directory.rmdir()


def test_lab_in_another_directory_sees_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "other" / "lab"
    for directory in (here, elsewhere):
        directory.mkdir(parents=True)
    addresses.claim_number(here)
    monkeypatch.setenv("GPUSHARE_LAB", str(elsewhere))
    assert lab_layout.default_directory() == elsewhere
    addresses.claim_number(elsewhere)
    assert addresses.others_with_nodes(elsewhere), "it would take away the mount points that the other stands on"


def test_a_port_that_is_taken_is_replaced_by_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.77.250.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (other,) = addresses.free_ports("127.77.250.1", (port,))
        assert other in addresses.SPARE_PORTS
        assert list(addresses.free_ports("127.77.250.2", (port,))) == [port]


def test_everything_listens_on_loopback_or_in_the_labs_directory() -> None:
    for component in (control_plane.etcd(LAB, Path("/p")), control_plane.api_server(LAB, Path("/p"))):
        listens = [flag for flag in component.process.argv if "listen" in flag or "bind-address" in flag]
        assert listens
        assert all("=unix://" in flag or "=127." in flag for flag in listens)
    configuration = kubelet.configuration(LAB, LAB.nodes[1])
    assert (configuration["address"], configuration["healthzBindAddress"]) == ("127.78.7.2", "127.78.7.2")


def test_nodes_share_the_pod_network_without_sharing_an_address() -> None:
    first, second = (network.cni_configuration(LAB, node) for node in LAB.nodes)
    assert ('"10.213.7.32"' in first, '"10.213.7.140"' in first) == (True, True)
    assert ('"10.213.7.141"' in second, '"10.213.7.249"' in second) == (True, True)
    # The Services' addresses come before those of pods.
    assert (LAB.service_address, LAB.service_range) == ("10.213.7.1", "10.213.7.0/27")


@pytest.mark.lab  # busybox's, one of the lab's packages
def test_the_images_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        image.write(tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
