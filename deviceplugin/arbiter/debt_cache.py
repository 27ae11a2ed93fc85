"""What shares owed when their last process left a GPU, for when the next one comes.

A share has no process between two short programs of a script, and a process can close its connection whenever it likes.
If its books began again each time, it would have the burst that a limit allows again and again, and no debt would be
paid. So they are kept for as long as they say that it owes something; nothing is kept of what is owed to it.
"""

from __future__ import annotations

from deviceplugin.arbiter.account import BURST_NS
from deviceplugin.arbiter.seat import Seat

_Place = tuple[str, str]  # a GPU's UUID, and a share's key


class DebtCache:
    """Of all GPUs of the node. Times in nanoseconds, on one clock."""

    def __init__(self) -> None:
        self._seats: dict[_Place, Seat] = {}

    def keep(self, gpu_uuid: str, key: str, seat: Seat, now_ns: int) -> None:
        """A share has left this seat; those that have made up for what they owed are forgotten."""
        self._seats[gpu_uuid, key] = seat
        for kept in self._seats.values():
            kept.account.set(now_ns, wanting=False)
        self._seats = {place: kept for place, kept in self._seats.items() if _owes(kept)}

    def take(self, gpu_uuid: str, key: str) -> Seat | None:
        """It is back: its seat from before, if it owed anything."""
        seat = self._seats.pop((gpu_uuid, key), None)
        if seat is not None:
            # Who was served least meanwhile is known to the GPU's books, which may have begun again.
            seat.account.surplus_ns = 0.0
        return seat


def _owes(seat: Seat) -> bool:
    account = seat.account
    # Without a request nothing that is owed is ever made up for, and nothing is lost by it.
    in_debt = account.owed_ns < 0 and account.entitlement.request_percent > 0
    return in_debt or (account.limited and account.room_ns < BURST_NS)
