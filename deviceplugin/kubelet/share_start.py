"""What is done before a container with a share starts, where NVIDIA's runtime does not go by its environment alone.

The kubelet says which ids the container has (PreStartContainer), and on another socket which pod has them; the pod's
allocation says which GPUs these are. They are described under the name that Allocate gave, before the container is made
of it. What cannot be found out is refused: the kubelet tells the pod why, and tries again.

Where the devices are denied to processes that are not registered, that begins here too: the pod has its cgroup by now.
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
_APART: Final = "their shares are on different GPUs: ask for another amount in one of them"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShareStart:
    """What is done for a container before it starts.

    held: who holds what, as the kubelet says it; raises PodResourcesError. find: what a container of a pod, by
    namespace, name and its own name, was given.
    """

    injection: Callable[[], Injection]
    settings: Callable[[], NodeSettings]
    held: Callable[[], Awaitable[Sequence[pod_resources.ContainerDevices]]]
    find: Callable[[str, str, str], Awaitable[tenant.StartingContainer | Refusal]]
    descriptions: Specs
    denied: PodDenial

    @property
    def is_needed(self) -> bool:
        """Whether a container may be refused, or something has to be done for it."""
        return self.denied.is_on or _matters(self.injection())

    def forget(self, name: str) -> None:
        """A name of CDI is given again, and stands for nothing yet."""
        self.descriptions.forget_share(name)

    async def __call__(self, resource: str, device_ids: Sequence[str]) -> None:
        """Find out whose container has these ids, and do what it needs. Raises AllocateRefusedError."""
        injection = self.injection()
        if injection.refusal:
            raise plugin_service.AllocateRefusedError(injection.refusal)
        if not self.is_needed:
            return
        name = cdi.share(device_ids)
        holder = await self._known(resource, device_ids)
        try:
            self.denied.cover(holder.pod_uid if isinstance(holder, tenant.StartingContainer) else "")
        except denial_program.DenialError as error:
            raise plugin_service.AllocateRefusedError(str(error)) from error
        if not _matters(injection):
            return
        if isinstance(holder, Refusal):
            # It was described for this very container when it started before: Allocate has not been called since.
            if self.descriptions.has_share(name):
                return
            raise plugin_service.AllocateRefusedError(f"the GPUs of this container are not known: {holder.reason}")
        if not injection.allows(holder.runtime_class):
            raise plugin_service.AllocateRefusedError(
                f"the pod {holder.namespace}/{holder.pod} would get no GPU on this node: name runtimeClassName: "
                f"{injection.needs_class} in it"
            )
        if injection.describes:
            try:
                self.descriptions.share(name, holder.uuids, self.settings())
            except SpecError as error:
                raise plugin_service.AllocateRefusedError(str(error)) from error

    async def _known(self, resource: str, device_ids: Sequence[str]) -> tenant.StartingContainer | Refusal:
        """What the container with these ids was given."""
        ids: dict[tuple[str, str, str, str], set[str]] = collections.defaultdict(set)
        try:
            for container in await self.held():
                ids[container.resource, container.namespace, container.pod, container.container].update(
                    container.device_ids
                )
        except pod_resources.PodResourcesError as error:
            return Refusal(str(error))
        self.descriptions.forget_shares({cdi.share(theirs) for theirs in ids.values()})
        holders = [who for (held, *who), theirs in ids.items() if (held, theirs) == (resource, set(device_ids))]
        if not holders:
            return Refusal(
                f"the kubelet does not say which container has these {len(device_ids)} of {resource}: {_INIT}"
            )
        # The kubelet gives the ids of an init container to the containers that start when it has ended.
        found = [await self.find(*who) for who in holders]
        if any(other != found[0] for other in found):
            names = " and ".join(errors.quoted(container) for _, _, container in holders)
            return Refusal(
                f"the containers {names} have the same {len(device_ids)} of {resource} in turn, and {_APART}"
            )
        return found[0]


def _matters(injection: Injection) -> bool:
    """Whether a container has to be known for what it is given."""
    return bool(injection.refusal or injection.needs_class or injection.describes)
