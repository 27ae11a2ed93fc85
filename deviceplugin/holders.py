"""The containers that the kubelet gave devices of GPUs to, as it last told, for metrics."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Mapping
from typing import Final

from deviceplugin.kubelet import advertisement
from deviceplugin.live import usage
from deviceplugin.live.witness import Witness
from deviceplugin.metrics import Holder

SECONDS: Final = 15.0  # between two questions


class Holders:
    """gpu_of: by the UUID of a GPU or MIG device, that of the GPU that it is on."""

    def __init__(self, witness: Witness, gpu_of: Callable[[], Mapping[str, str]]) -> None:
        self._witness = witness
        self._gpu_of = gpu_of

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            await self._witness.ask_kubelet()
            await asyncio.sleep(SECONDS)

    @property
    def all(self) -> list[Holder]:
        """As last told."""
        gpu_of = self._gpu_of()
        counts = collections.Counter(
            (one.namespace, one.pod, one.container, one.resource, gpu_of[card])
            for one in self._witness.held
            if one.resource not in advertisement.PER_GPU
            for card in map(usage.card_of, one.device_ids)
            if card in gpu_of
        )
        return [Holder(*key, devices=count) for key, count in sorted(counts.items())]
