"""The pods' network: a bridge that connects pods only with each other and with this machine.

Pods have no default route, and the lab needs no forwarding, masquerading or iptables rules. One namespace on the bridge
belongs to no pod: the Service `kubernetes` is served there (`lab.kubernetes_service`).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from lab import lab_errors, lab_layout, prerequisites

# The pods' part of the network: after the addresses of Services, before the bridge's.
FIRST_ADDRESS, LAST_ADDRESS = 32, 249
BRIDGE_ADDRESS = 254
MAC_PREFIX = "0a:58"  # followed by an IP address: a MAC address, as other container networks form theirs


def cni_configuration(lab: lab_layout.Layout, node: lab_layout.Node) -> str:
    """Return a node's CNI configuration, with its part of the address range."""
    count = (LAST_ADDRESS + 1 - FIRST_ADDRESS) // len(lab.nodes)
    first = FIRST_ADDRESS + node.number * count
    addresses = {
        "subnet": f"{lab.pod_network}.0/24",
        "rangeStart": f"{lab.pod_network}.{first}",
        "rangeEnd": f"{lab.pod_network}.{first + count - 1}",
    }
    bridge = {
        "type": "bridge",
        "bridge": lab.bridge,
        "isGateway": False,  # as a gateway, the plugin would enable forwarding on the whole machine
        "ipMasq": False,
        "ipam": {"type": "host-local", "ranges": [[addresses]]},
    }
    return json.dumps({"cniVersion": "0.4.0", "name": lab.bridge, "plugins": [bridge]}, indent=2)


def create(lab: lab_layout.Layout) -> None:
    """Create the bridge; no-op if it exists.

    Raises:
        LabError: the kernel refused.
    """
    if exists(lab.bridge):
        return
    # A bridge without its own MAC address takes the lowest one of its ports, which changes when pods start and
    # stop. Packets that other pods send to the machine at that moment are lost. If such a packet ends a connection, the
    # API server keeps using the connection for requests to a webhook that is gone, and each request takes until its
    # timeout.
    _ip("link", "add", lab.bridge, "address", _mac_address(lab), "type", "bridge")
    _ip("address", "add", f"{lab.pod_network}.{BRIDGE_ADDRESS}/24", "dev", lab.bridge)
    _ip("link", "set", lab.bridge, "up")
    _create_service_namespace(lab)


def remove(lab: lab_layout.Layout) -> None:
    """Remove the bridge and the devices that are still attached to it."""
    if service_namespace(lab).exists():
        _ip("netns", "delete", lab.bridge)
    if not exists(lab.bridge):
        return
    for port in json.loads(_ip("-json", "link", "show", "master", lab.bridge) or "[]"):
        # The device may disappear right now, together with the namespace at its other end.
        _ip("link", "delete", port["ifname"], check=False)
    _ip("link", "delete", lab.bridge)


def exists(device: str) -> bool:
    """Return whether this machine has a network device of that name."""
    return any(link.get("ifname") == device for link in json.loads(_ip("-json", "link", "show") or "[]"))


def service_namespace(lab: lab_layout.Layout) -> Path:
    """Return the path of the network namespace in which the Service `kubernetes` has its address."""
    return Path("/run/netns") / lab.bridge


def _create_service_namespace(lab: lab_layout.Layout) -> None:
    inside, outside = "eth0", f"{lab.bridge}s"
    _ip("netns", "add", lab.bridge)
    _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", lab.bridge)
    _ip("link", "set", outside, "master", lab.bridge, "up")
    _ip("-netns", lab.bridge, "address", "add", f"{lab.service_address}/24", "dev", inside)
    _ip("-netns", lab.bridge, "link", "set", inside, "up")


def _mac_address(lab: lab_layout.Layout) -> str:
    address = f"{lab.pod_network}.{BRIDGE_ADDRESS}"
    return ":".join([MAC_PREFIX, *(f"{int(byte):02x}" for byte in address.split("."))])


def _ip(*arguments: str, check: bool = True) -> str:
    command = [prerequisites.program("ip"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and result.returncode:
        raise lab_errors.LabError(f"ip {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout
