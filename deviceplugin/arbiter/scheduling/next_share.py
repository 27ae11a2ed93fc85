"""Who is next: of the shares that want a GPU and that their limits let begin. Pure.

First the latency class, as long as it is owed something; then whoever is owed the most; and when nobody is owed
anything, whoever has had the least of the rest for its weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from deviceplugin.arbiter.scheduling.account import Account, PayingAccount

# Less than this is not owed: the books are sums of fractions.
NOTHING_NS: Final = 1.0


def choose(candidates: Mapping[str, Account]) -> str | None:
    """The key of the one to be served; ties go to the first in the mapping."""
    able = {key: account for key, account in candidates.items() if account.eligible()}
    if not able:
        return None
    owed = {key: account for key, account in able.items() if is_owed(account)}
    urgent = {key: account for key, account in owed.items() if account.entitlement.latency}
    if owed:
        return max(urgent or owed, key=lambda key: owed[key].owed_ns)
    return min(able, key=lambda key: able[key].surplus_ns)


# Of the latency class and owed something; what it is owed; how far it is behind in the rest, by weight.
Standing = tuple[bool, float, float]


def standing(account: Account, surplus_ns: float) -> Standing:
    """The same order as a value: the greatest is served first. It compares shares of several GPUs as well.

    surplus_ns: the surplus of whoever is served now from the time that nobody is owed, on the account's GPU.
    """
    owed_ns = account.owed_ns if is_owed(account) else 0.0
    return owed_ns > 0 and account.entitlement.latency, owed_ns, surplus_ns - account.surplus_ns


def is_owed(account: Account) -> bool:
    """Whether it has time coming by its guarantee."""
    return account.owed_ns > NOTHING_NS


def charge_of(account: Account) -> PayingAccount:
    """The book that a turn which begins now is paid from."""
    return PayingAccount.OWED if is_owed(account) else PayingAccount.SURPLUS


def interrupts(newcomer: Account, holder: Account) -> bool:
    """Whether a share that has just begun to want the GPU need not wait until the holder's turn is over."""
    if not newcomer.eligible() or not newcomer.entitlement.latency or not is_owed(newcomer):
        return False
    return not (holder.entitlement.latency and is_owed(holder))
