"""Certificates: which there are, and which step brings them to what they should be. Pure: held and now → step.

A change of authority takes three steps, with time between for every replica and API server to follow: the new authority
is trusted as well, then it issues the serving certificate, then the old one is forgotten. At each moment the API server
trusts whatever certificate any replica serves. It begins when the authority gets old, or when somebody asks for it.
"""

from __future__ import annotations

import datetime
import enum
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cryptography import exceptions, x509
from cryptography.hazmat.primitives import serialization

AUTHORITY_LIFE: Final = datetime.timedelta(days=365)
SERVING_LIFE: Final = datetime.timedelta(days=90)
SPREAD: Final = datetime.timedelta(minutes=15)  # until everybody has seen a step
LOOKS_IN_A_SPREAD: Final = 15  # by each replica
BACKDATED: Final = datetime.timedelta(days=1)  # for clocks that are wrong by hours, as in a wrong time zone
_LEFT: Final = 3  # renewed when less than one third of the life is left
_LAST_MOMENT: Final = datetime.timedelta(hours=1)


class UnusableError(ValueError):
    """What was stored is not a set of certificates; the message says why."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts. `trusted` has the authority's certificate first, then older authorities that are still trusted.

    Without `trusted` and `authority_key` they are somebody else's.
    """

    trusted: tuple[str, ...]
    authority_key: str
    serving: str
    serving_key: str

    @property
    def bundle(self) -> str:
        """What the API server has to trust."""
        return "".join(self.trusted)


class RotationStep(enum.StrEnum):
    """What to do next; at most one at a time."""

    KEEP = "keep"
    START = "start"  # make everything: there is nothing, or nothing usable
    TRUST_NEW_AUTHORITY = "trust-new-authority"
    ISSUE = "issue"  # a new serving certificate from the newest authority
    FORGET_OLD_AUTHORITIES = "forget-old-authorities"


def next_step(
    held: Certificates | None,
    names: Iterable[str],
    *,
    now: datetime.datetime,
    asked: bool = False,
    spread: datetime.timedelta = SPREAD,
) -> RotationStep:
    """The next step for a server that is reached under `names` (DNS names or IP addresses).

    asked: somebody wants a new authority; it begins as soon as no rotation is under way.
    """
    if held is None:
        return RotationStep.START
    try:
        authority, serving = _check(held)
    except UnusableError:
        return RotationStep.START
    if authority.not_valid_after_utc <= now or authority.not_valid_before_utc > now:
        return RotationStep.START
    issued_by_newest = _issued(serving, authority)
    if issued_by_newest and (_is_old(authority, now) or (asked and len(held.trusted) == 1)):
        return RotationStep.TRUST_NEW_AUTHORITY
    wanting = _is_old(serving, now) or not issued_by_newest or names_of(serving) != frozenset(map(_canonical, names))
    if wanting:
        last_moment = serving.not_valid_after_utc - now < _LAST_MOMENT
        is_spread = len(held.trusted) == 1 or now - _made_at(authority) >= spread
        return RotationStep.ISSUE if is_spread or last_moment else RotationStep.KEEP
    if len(held.trusted) > 1 and now - _made_at(serving) >= spread:
        return RotationStep.FORGET_OLD_AUTHORITIES
    return RotationStep.KEEP


def serving_ends(held: Certificates) -> datetime.datetime:
    """When the serving certificate ends."""
    return _check(held)[1].not_valid_after_utc


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    """The DNS names and addresses that a certificate is for."""
    try:
        listed = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = (str(address) for address in listed.get_values_for_type(x509.IPAddress))
    return frozenset((*listed.get_values_for_type(x509.DNSName), *addresses))


def split(bundle: str) -> tuple[str, ...]:
    """The certificates in a PEM text, each as a text of its own. Raises UnusableError."""
    try:
        certificates = x509.load_pem_x509_certificates(bundle.encode())
    except ValueError as error:
        raise UnusableError(f"the bundle of authorities is invalid: {error}") from error
    return tuple(certificate.public_bytes(serialization.Encoding.PEM).decode() for certificate in certificates)


def _check(held: Certificates) -> tuple[x509.Certificate, x509.Certificate]:
    """`(newest authority, serving certificate)`. Raises UnusableError when anything does not belong together."""
    try:
        authorities = [x509.load_pem_x509_certificate(text.encode()) for text in held.trusted]
        serving = x509.load_pem_x509_certificate(held.serving.encode())
        keys = [
            serialization.load_pem_private_key(text.encode(), password=None)
            for text in (held.authority_key, held.serving_key)
        ]
    except (ValueError, TypeError) as error:
        raise UnusableError(str(error)) from error
    if not authorities:
        raise UnusableError("no authority is there")
    for certificate, key in zip((authorities[0], serving), keys, strict=True):
        if certificate.public_key() != key.public_key():
            raise UnusableError("a key does not belong to its certificate")
    if not any(_issued(serving, authority) for authority in authorities):
        raise UnusableError("the serving certificate was issued by none of the trusted authorities")
    return authorities[0], serving


def _issued(serving: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        serving.verify_directly_issued_by(authority)
    except (exceptions.InvalidSignature, ValueError, TypeError):
        return False
    return True


def _made_at(certificate: x509.Certificate) -> datetime.datetime:
    return certificate.not_valid_before_utc + BACKDATED


def _is_old(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    life = certificate.not_valid_after_utc - _made_at(certificate)
    return certificate.not_valid_after_utc - now < life / _LEFT


def _canonical(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name
