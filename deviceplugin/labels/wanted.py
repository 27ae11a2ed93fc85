"""The labels that the Node is to have now, of the driver, of what was seen of the GPUs, and of the modes in force."""

from __future__ import annotations

import time

from deviceplugin.hardware import nvml_call
from deviceplugin.hardware.driver import Driver
from deviceplugin.hardware.observation import Observation
from deviceplugin.labels import gpu_resources, label_facts, whole, words
from deviceplugin.state.node_state import ModesInForce
from deviceplugin.state.offer import Observable


class WantedLabels:
    """They bear the time at which this was made, where that is configured."""

    def __init__(self, driver: Driver, observed: Observation, in_force: Observable[ModesInForce]) -> None:
        self._driver = driver
        self._observed = observed
        self._in_force = in_force
        self._started = int(time.time())

    async def now(self) -> words.Labels | None:
        """None while they cannot be told."""
        modes = self._in_force.value
        try:
            facts = await self._driver.ask(
                label_facts.facts,
                self._driver.nvml,
                self._observed.seen.gpus,
                self._observed.gpus,
                machine_type_file=modes.settings.machine_type_file,
            )
            return whole.labels(
                facts,
                strategy=modes.settings.mig_strategy,
                sharing=label_facts.sharing(modes.assignments),
                started=self._started if modes.settings.timestamp_label else None,
            )
        except (nvml_call.NvmlError, gpu_resources.StrategyError, words.DriverVersionError):
            return None
