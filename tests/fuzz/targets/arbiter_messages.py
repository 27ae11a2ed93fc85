"""Messages between the agent and the arbiter's process."""

from __future__ import annotations

from deviceplugin.arbiter import messages


def run(data: bytes) -> None:
    try:
        message = messages.read(data)
    except ValueError:
        return
    assert messages.write(messages.read(messages.write(message))) == messages.write(message)
