"""Changes one object of the cluster without a lock: read, change, write; retried if another writer was faster.

The API server compares resource versions, so of two writers that read the same state only one succeeds. The other
decides again on the new state. No lock is held while waiting, and a writer that dies leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from gpushare.cluster import api_client, api_errors, backoff

ATTEMPTS: Final = 16
FIRST_PAUSE_SECONDS: Final = 0.005
MAX_PAUSE_SECONDS: Final = 0.5

Change = Callable[[dict[str, Any]], dict[str, Any] | None]


async def update(api: api_client.ApiClient, path: str, change: Change) -> dict[str, Any]:
    """Apply `change` to the object at `path`; return the object as stored.

    change: gets the whole object, which it may alter, and returns the object to write, or None if there is nothing to
        write. It is called once per attempt, each time with the state then, so its earlier decisions do not count. An
        exception that it raises is passed on, and nothing is written.

    Raises Conflict if every attempt met a faster writer; NotFound, Invalid and Unavailable as the client does. After
    Unavailable the change may or may not have been written: call again, with a `change` that recognises its own result.
    """
    attempt = 0
    while True:
        attempt += 1
        current = await api.get(path)
        version, uid = current["metadata"]["resourceVersion"], current["metadata"]["uid"]
        wanted = change(current)
        if wanted is None:
            return current
        # Set again here, because a write without them would overwrite any version.
        wanted = {**wanted, "metadata": {**wanted.get("metadata", {}), "resourceVersion": version, "uid": uid}}
        try:
            return await api.replace(path, wanted)
        except api_errors.Conflict as error:
            if attempt == ATTEMPTS:
                message = f"{error}; gave up after {ATTEMPTS} attempts"
                raise api_errors.Conflict(message, status=error.status, reason=error.reason) from error
        await asyncio.sleep(
            backoff.pause_seconds(attempt, first_seconds=FIRST_PAUSE_SECONDS, most_seconds=MAX_PAUSE_SECONDS)
        )
