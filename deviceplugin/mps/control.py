"""Carries commands to an MPS daemon, by the program that NVIDIA ships for it: commands on stdin, answers on stdout."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SECONDS: Final = 15.0
ALIVE: Final = "get_default_active_thread_percentage"  # every version has it, and it changes nothing


class ControlError(Exception):
    """The program could not be run, or the daemon did not answer it; the message says what was tried and what to do."""


class Control:
    """program: `nvidia-cuda-mps-control`. environment: of the daemon, which names its pipe directory."""

    def __init__(self, program: Path, environment: Mapping[str, str]) -> None:
        self._program = program
        self._environment = dict(environment)

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
        try:
            process = await asyncio.create_subprocess_exec(
                self._program,
                *arguments,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise ControlError(
                f"{shown} cannot be run ({error.strerror}): it comes with the driver, name it by its path"
            ) from error
        try:
            async with asyncio.timeout(SECONDS):
                output, _ = await process.communicate(commands.encode())
        except TimeoutError as error:
            raise ControlError(f"{shown} took longer than {SECONDS:.0f} s: the daemon hangs") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = output.decode(errors="replace").strip()
        if process.returncode != 0:
            raise ControlError(f"{shown} failed ({process.returncode}): {text or 'it said nothing'}")
        return text
