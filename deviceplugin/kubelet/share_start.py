"""Prepares a share container before it starts, on nodes where the environment alone does not select the GPU.

PreStartContainer has the ids of the container, the kubelet's pod-resources API has the pod of these ids, and the pod's
allocation has the GPUs. The GPUs are described under the CDI name from Allocate, before the runtime creates the
container. If the pod cannot be found, the start is refused: the kubelet reports the reason in the pod's status and
retries.

Denial of the devices to unregistered processes starts here too, because the pod's cgroup exists by now.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from deviceplugin.allocation import cdi
from deviceplugin.arbiter import tenant
from deviceplugin.cdi.specs import SpecError, Specs
from deviceplugin.denial import denial_program
from deviceplugin.denial.pod_denial import PodDenial
from deviceplugin.injection.decision import Injection
from deviceplugin.kubelet import plugin_service
from deviceplugin.state import kubelet_checkpoint, pod_resources
from gpushare import errors
from gpushare.config.node_settings import NodeSettings
from gpushare.refusal import Refusal

_INIT: Final = (
    "init containers are listed only in the kubelet's file "
    f"{kubelet_checkpoint.NAME}, which the agent must be able to read"
)
_APART: Final = "their shares are on different GPUs: request a different amount in one of them"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShareStart:
    """The work before a share container starts.

    held: all containers with devices, from the kubelet; raises PodResourcesError. find: the allocation of a container,
    by namespace, pod and container name. denied: covers a pod's cgroup.
    """

    injection: Callable[[], Injection]
    settings: Callable[[], NodeSettings]
    held: Callable[[], Awaitable[Sequence[pod_resources.ContainerDevices]]]
    find: Callable[[str, str, str], Awaitable[tenant.StartingContainer | Refusal]]
    descriptions: Specs
    denied: PodDenial

    @property
    def is_needed(self) -> bool:
        """Whether a container may be refused or needs preparation."""
        return self.denied.is_on or _needs_owner(self.injection())

    def reset(self, name: str) -> None:
        """Remove the description of a CDI name whose ids are allocated again."""
        self.descriptions.remove_share(name)

    async def __call__(self, resource: str, device_ids: Sequence[str]) -> None:
        """Find the container that has these ids and prepare it. Raises AllocateRefusedError."""
        injection = self.injection()
        if injection.refusal:
            raise plugin_service.AllocateRefusedError(injection.refusal)
        if not self.is_needed:
            return
        name = cdi.share_name(device_ids)
        holder = await self._given(resource, device_ids)
        try:
            self.denied.cover(holder.pod_uid if isinstance(holder, tenant.StartingContainer) else "")
        except denial_program.DenialError as error:
            raise plugin_service.AllocateRefusedError(str(error)) from error
        if not _needs_owner(injection):
            return
        if isinstance(holder, Refusal):
            # An earlier start of this container wrote the description: Allocate would have removed it.
            if self.descriptions.has_share(name):
                return
            raise plugin_service.AllocateRefusedError(f"the GPUs of this container are unknown: {holder.reason}")
        if not injection.allows(holder.runtime_class):
            raise plugin_service.AllocateRefusedError(
                f"the pod {holder.namespace}/{holder.pod} would get no GPU on this node: set runtimeClassName: "
                f"{injection.needs_class}"
            )
        if injection.uses_cdi:
            try:
                self.descriptions.write_share(name, holder.uuids, self.settings())
            except SpecError as error:
                raise plugin_service.AllocateRefusedError(str(error)) from error

    async def _given(self, resource: str, device_ids: Sequence[str]) -> tenant.StartingContainer | Refusal:
        """Find the allocation of the container with these ids."""
        ids: dict[tuple[str, str, str, str], set[str]] = collections.defaultdict(set)
        try:
            for container in await self.held():
                ids[container.resource, container.namespace, container.pod, container.container].update(
                    container.device_ids
                )
        except pod_resources.PodResourcesError as error:
            return Refusal(str(error))
        self.descriptions.keep_only_shares({cdi.share_name(theirs) for theirs in ids.values()})
        holders = [owner for (held, *owner), theirs in ids.items() if (held, theirs) == (resource, set(device_ids))]
        if not holders:
            return Refusal(
                f"the kubelet reports no container with these {len(device_ids)} devices of {resource}: {_INIT}"
            )
        # The kubelet reuses an init container's ids for the containers that start after it.
        found = [await self.find(*owner) for owner in holders]
        if any(other != found[0] for other in found):
            names = " and ".join(errors.quoted(container) for _, _, container in holders)
            return Refusal(
                f"the containers {names} use the same {len(device_ids)} devices of {resource} in turn, but {_APART}"
            )
        return found[0]


def _needs_owner(injection: Injection) -> bool:
    """Whether the container's pod must be known to inject its devices."""
    return bool(injection.refusal or injection.needs_class or injection.uses_cdi)
