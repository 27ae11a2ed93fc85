"""Which configuration the GPUs are to be by, as far as that is known now; and what is wrong with what was asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from deviceplugin.modes import desired_config
from deviceplugin.modes.cluster_config import Configuration
from gpushare import errors
from gpushare.config.config_choice import ActiveConfig
from gpushare.modes.hardware_gpu import HardwareGpu

logger = logging.getLogger(__name__)

_Asked = tuple[ActiveConfig, tuple[HardwareGpu, ...]]


class Choosing:
    """Remembers the last configuration that was good.

    problem: why what is asked for is not in force, as a sentence; empty when it is. refused: called with each new one.
    """

    def __init__(
        self, source: Configuration, options: desired_config.ModeOptions, refused: Callable[[str], None]
    ) -> None:
        self._source = source
        self._options = options
        self._refused = refused
        self._understood: dict[_Asked, desired_config.DesiredConfig | errors.ConfigError] = {}
        self.desired: desired_config.DesiredConfig | None = None
        self.problem = ""

    async def choose(
        self, current: ActiveConfig | None, gpus: Sequence[HardwareGpu], seated: Sequence[HardwareGpu] | None = None
    ) -> desired_config.DesiredConfig | None:
        """The configuration for these GPUs: what is asked for, or else `current`, or else the last one that was good.

        None where there is none of them: then nothing is in force.
        current: what the GPUs were to be by until now; None at a first start. seated: the GPUs by which `current` is
        understood, if not `gpus`.
        """
        problem, wanted = "", current
        if self._source.is_known:
            entries, label = self._source.entries, self._source.label
            decision = desired_config.chosen(current, entries, label=label, options=self._options)
            problem, wanted = decision.problem, decision.in_force
        known, self._understood = self._understood, {}
        for config in dict.fromkeys(filter(None, (wanted, current))):
            asked = config, tuple(gpus if seated is None or config != current else seated)
            # In a thread, and once: somebody else has written it, and it may be long.
            config_error = known[asked] if asked in known else await asyncio.to_thread(self._understand, *asked)
            self._understood[asked] = config_error
            if isinstance(config_error, desired_config.DesiredConfig):
                self._take(config_error)
                break
            problem = problem or str(config_error)
        if problem and problem != self.problem:
            logger.warning("The configuration cannot be applied", extra={"err": problem})
            self._refused(problem)
        self.problem = problem
        return self.desired

    def _understand(
        self, config: ActiveConfig, gpus: Sequence[HardwareGpu]
    ) -> desired_config.DesiredConfig | errors.ConfigError:
        try:
            return desired_config.understood(config, gpus, self._options)
        except errors.ConfigError as error:
            return error

    def _take(self, desired: desired_config.DesiredConfig) -> None:
        if self.desired is None or self.desired.config != desired.config:
            logger.info("The configuration", extra={"config": desired.config.name, "warnings": list(desired.warnings)})
        self.desired = desired
