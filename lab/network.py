"""The pods' network: a bridge of the lab's own that leads nowhere but to this machine.

Pods reach each other and the machine, and have no default route: no forwarding, no masquerading, no iptables rule. One
namespace on it belongs to no pod: in it the Service `kubernetes` is answered, see `lab.kubernetes_service`.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from lab import lab_errors, lab_layout, prerequisites

# Addresses of a lab's pod network that are given to pods: after those of Services, before the bridge's.
FIRST_ADDRESS, LAST_ADDRESS = 32, 249
BRIDGE_ADDRESS = 254
MAC_PREFIX = "0a:58"  # before an IP address, as other container networks make theirs


def cni_configuration(lab: lab_layout.Layout, node: lab_layout.Node) -> str:
    """Return the CNI configuration of one node, which gets its part of the addresses."""
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
        "isGateway": False,  # as a gateway the plugin would turn on forwarding for the whole machine
        "ipMasq": False,
        "ipam": {"type": "host-local", "ranges": [[addresses]]},
    }
    return json.dumps({"cniVersion": "0.4.0", "name": lab.bridge, "plugins": [bridge]}, indent=2)


def create(lab: lab_layout.Layout) -> None:
    """Make the bridge, unless it is there.

    Raises:
        LabError: the kernel refused.
    """
    if exists(lab.bridge):
        return
    # A bridge without a MAC address takes the lowest of its ports', which changes when pods come and go. Packets that
    # other pods send to the machine at that moment are lost. If one was the end of a connection, the API server keeps
    # using it for requests to a webhook that is gone, and each takes until its timeout.
    _ip("link", "add", lab.bridge, "address", _mac_address(lab), "type", "bridge")
    _ip("address", "add", f"{lab.pod_network}.{BRIDGE_ADDRESS}/24", "dev", lab.bridge)
    _ip("link", "set", lab.bridge, "up")
    _create_service_namespace(lab)


def remove(lab: lab_layout.Layout) -> None:
    """Remove the bridge and what is still plugged into it."""
    if service_namespace(lab).exists():
        _ip("netns", "delete", lab.bridge)
    if not exists(lab.bridge):
        return
    for port in json.loads(_ip("-json", "link", "show", "master", lab.bridge) or "[]"):
        # Its other end may go with its namespace at this very moment.
        _ip("link", "delete", port["ifname"], check=False)
    _ip("link", "delete", lab.bridge)


def exists(device: str) -> bool:
    """Tell whether this machine has a network device of that name."""
    return any(link.get("ifname") == device for link in json.loads(_ip("-json", "link", "show") or "[]"))


def service_namespace(lab: lab_layout.Layout) -> Path:
    """Return the file of the network namespace in which the Service `kubernetes` has its address."""
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
