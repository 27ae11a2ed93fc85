"""Change one object of the cluster without a lock: read, change, write; and again if somebody was faster.

The API server compares resource versions, so of two writers that read the same state only one succeeds, and the other
decides again on what is true now. Nothing is held while waiting, and a writer that dies leaves nothing behind.
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
    """Apply `change` to the object at `path`; return the object as it is stored now.

    change: gets the whole object, which it may alter, and returns the object to write; or None, having altered nothing,
        when there is nothing to do. It is called once per attempt, each time with the state then, so what it decided
        before does not count. What it raises is passed on, and nothing is written.

    Raises Conflict when all attempts met a faster writer; NotFound, Invalid and Unavailable as the client does. After
    Unavailable the change may have been written or not: call again, with a `change` that finds its own result.
    """
    attempt = 0
    while True:
        attempt += 1
        current = await api.get(path)
        version, uid = current["metadata"]["resourceVersion"], current["metadata"]["uid"]
        wanted = change(current)
        if wanted is None:
            return current
        # Stated here again, because a write without them would overwrite whatever is there.
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
