"""The pods' network: connecting or disconnecting one pod does not disturb the others."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import addresses, lab_layout, network

pytestmark = pytest.mark.lab  # needs root


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[lab_layout.Layout]:
    made = lab_layout.Layout(tmp_path, addresses.claim_number(tmp_path), 443, 10259, 10257, ())
    network.create(made)
    yield made
    network.remove(made)
    addresses.release_number(made.number, tmp_path)


def test_the_bridge_keeps_its_mac_address(lab: lab_layout.Layout) -> None:
    """Otherwise packets that a pod sends to the machine just after another pod has ended would be lost."""
    before = mac_address(lab)
    # by default a bridge takes the lowest address of its ports
    ports = [("02:00:00:00:00:01", "a"), ("fe:ff:ff:ff:ff:fe", "b")]
    for address, suffix in ports:
        name = f"{lab.bridge}{suffix}"
        ip("link", "add", name, "address", address, "type", "veth", "peer", "name", f"{name}p")
        ip("link", "set", name, "master", lab.bridge, "up")
        assert mac_address(lab) == before
    for _, suffix in ports:
        ip("link", "delete", f"{lab.bridge}{suffix}")
        assert mac_address(lab) == before


def mac_address(lab: lab_layout.Layout) -> str:
    return Path(f"/sys/class/net/{lab.bridge}/address").read_text().strip()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
