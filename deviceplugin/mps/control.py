"""Carries commands to an MPS daemon, by the program that NVIDIA ships for it: commands on stdin, answers on stdout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deviceplugin.mps import running

ALIVE: Final = "get_default_active_thread_percentage"  # every version has it, and it changes nothing


class ControlError(Exception):
    """The program could not be run, or the daemon did not answer it; the message says what was tried and what to do."""


class Control:
    """program: `nvidia-cuda-mps-control`, or the socket of a keeper that runs it.

    environment: of the daemon, which names its pipe directory.
    """

    def __init__(self, program: Path, environment: Mapping[str, str]) -> None:
        self._program = program
        self._environment = dict(environment)

    @property
    def program(self) -> Path:
        """What was given."""
        return self._program

    async def start(self) -> None:
        """Start the daemon in the background. Raises ControlError."""
        await self._run(("-d",), "")

    async def send(self, command: str) -> str:
        """What the daemon answers to a command. Raises ControlError."""
        return await self._run((), f"{command}\n")

    async def answers(self) -> bool:
        """Whether there is a daemon that answers."""
        try:
            await self.send(ALIVE)
        except ControlError:
            return False
        return True

    async def _run(self, arguments: tuple[str, ...], commands: str) -> str:
        shown = f"{self._program} {' '.join(arguments) or commands.strip()}"
        outcome = await running.run(self._program, running.DaemonCall(arguments, self._environment, commands))
        if outcome.problem:
            raise ControlError(f"{shown} {outcome.problem}")
        if outcome.code != 0:
            raise ControlError(f"{shown} failed ({outcome.code}): {outcome.output or 'it said nothing'}")
        return outcome.output
