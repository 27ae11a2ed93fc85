"""Chooses the next share among those that want a GPU and are within their limits. Pure.

Shares of the latency class go first while they are owed time, then the share that is owed most. If no share is owed
time, the one with the least unclaimed time for its weight is next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from deviceplugin.arbiter.scheduling.account import Account, PayingAccount

# Smaller debts count as zero, because balances are sums of fractions.
NOTHING_NS: Final = 1.0


def choose(candidates: Mapping[str, Account]) -> str | None:
    """Return the key of the share to serve. Ties go to the first in the mapping."""
    able = {key: account for key, account in candidates.items() if account.eligible()}
    if not able:
        return None
    owed = {key: account for key, account in able.items() if is_owed(account)}
    urgent = {key: account for key, account in owed.items() if account.entitlement.latency}
    if owed:
        return max(urgent or owed, key=lambda key: owed[key].owed_ns)
    return min(able, key=lambda key: able[key].surplus_ns)


# Whether it is of the latency class and owed time; the time owed; how far its surplus is behind.
Standing = tuple[bool, float, float]


def standing(account: Account, surplus_ns: float) -> Standing:
    """Return a rank with the same order: the greatest is served first. Ranks of different GPUs are comparable.

    surplus_ns: the highest surplus that a share served from unclaimed time has had on the account's GPU.
    """
    owed_ns = account.owed_ns if is_owed(account) else 0.0
    return owed_ns > 0 and account.entitlement.latency, owed_ns, surplus_ns - account.surplus_ns


def is_owed(account: Account) -> bool:
    """Whether the share has guaranteed time coming."""
    return account.owed_ns > NOTHING_NS


def charge_of(account: Account) -> PayingAccount:
    """Return the balance that pays for a turn that begins now."""
    return PayingAccount.OWED if is_owed(account) else PayingAccount.SURPLUS


def interrupts(newcomer: Account, holder: Account) -> bool:
    """Whether a share that has just begun to wait may interrupt the holder's turn."""
    if not newcomer.eligible() or not newcomer.entitlement.latency or not is_owed(newcomer):
        return False
    return not (holder.entitlement.latency and is_owed(holder))
