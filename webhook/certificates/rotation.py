"""Rotation: certificates and time → the next step, and the certificates after it. Pure, except for making keys.

A new authority takes three steps, with time in between for all replicas and API servers to follow. The new authority is
trusted in addition, then it issues the serving certificate, then the old authority is removed. At each moment the API
server trusts the certificate of every replica. A rotation begins when the authority gets old, or on request.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import exceptions, x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpushare.daemon import certificate

AUTHORITY_LIFE: Final = datetime.timedelta(days=365)
SERVING_LIFE: Final = datetime.timedelta(days=90)
SPREAD: Final = datetime.timedelta(minutes=15)  # until all replicas and API servers have seen a step
LOOKS_IN_A_SPREAD: Final = 15  # by each replica
BACKDATED: Final = datetime.timedelta(days=1)  # for clocks that are hours off, such as a wrong time zone
_LEFT: Final = 3  # renewed when less than one third of the lifetime is left
_LAST_MOMENT: Final = datetime.timedelta(hours=1)


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class UnusableError(ValueError):
    """The stored certificates are invalid; the message says why."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts; `trusted`: the current authority, then older ones; empty, as `authority_key`, with another issuer."""

    trusted: tuple[str, ...]
    authority_key: str
    serving: str
    serving_key: str

    @property
    def bundle(self) -> str:
        return "".join(self.trusted)


class RotationStep(enum.StrEnum):
    """The next step of a rotation; one at a time."""

    KEEP = "keep"
    START = "start"  # issue everything: there are no certificates, or they are invalid
    TRUST_NEW_AUTHORITY = "trust-new-authority"
    ISSUE = "issue"  # issue a serving certificate from the newest authority
    FORGET_OLD_AUTHORITIES = "forget-old-authorities"


def next_step(
    held: Certificates | None,
    names: Iterable[str],
    *,
    now: datetime.datetime,
    asked: bool = False,
    spread: datetime.timedelta = SPREAD,
) -> RotationStep:
    """Return the next step for a server under `names` (DNS or IP); asked: rotate, once no other rotation goes on."""
    if held is None:
        return RotationStep.START
    try:
        authority, serving = check(held)
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


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    try:
        listed = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = (str(address) for address in listed.get_values_for_type(x509.IPAddress))
    return frozenset((*listed.get_values_for_type(x509.DNSName), *addresses))


def split(bundle: str) -> tuple[str, ...]:
    """Split a PEM text into its certificates. Raises UnusableError."""
    try:
        certificates = x509.load_pem_x509_certificates(bundle.encode())
    except ValueError as error:
        raise UnusableError(f"the bundle of authorities is invalid: {error}") from error
    return tuple(certificate.public_bytes(serialization.Encoding.PEM).decode() for certificate in certificates)


def check(held: Certificates) -> tuple[x509.Certificate, x509.Certificate]:
    """Return the newest authority and the serving certificate. Raises UnusableError if keys do not match."""
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
        raise UnusableError("there is no authority")
    for issued, key in zip((authorities[0], serving), keys, strict=True):
        if issued.public_key() != key.public_key():
            raise UnusableError("a key does not match its certificate")
    if not any(_issued(serving, authority) for authority in authorities):
        raise UnusableError("no trusted authority has issued the serving certificate")
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


def apply_step(
    step: RotationStep, held: Certificates | None, names: Sequence[str], *, now: datetime.datetime
) -> Certificates:
    if held is None or step is RotationStep.START:
        authority, key = _authority(now)
        return _with_new_serving(Certificates((authority,), key, "", ""), names, now)
    match step:
        case RotationStep.TRUST_NEW_AUTHORITY:
            authority, key = _authority(now)
            return dataclasses.replace(held, trusted=(authority, *held.trusted), authority_key=key)
        case RotationStep.ISSUE:
            return _with_new_serving(held, names, now)
        case RotationStep.FORGET_OLD_AUTHORITIES:
            return dataclasses.replace(held, trusted=held.trusted[:1])
        case _:
            return held


def _authority(now: datetime.datetime) -> tuple[str, str]:
    key = certificate.new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpushare webhook authority {now:%Y-%m-%d %H:%M}")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    built = (
        certificate.builder(
            name, name, key, valid_from=now - BACKDATED, valid_until=now + AUTHORITY_LIFE, signs_certificates=True
        )
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, certificate.HASH)
    )
    return certificate.pem(built), certificate.key_pem(key)


def _with_new_serving(held: Certificates, names: Sequence[str], now: datetime.datetime) -> Certificates:
    authority = x509.load_pem_x509_certificate(held.trusted[0].encode())
    authority_key = serialization.load_pem_private_key(held.authority_key.encode(), password=None)
    if not isinstance(authority_key, ec.EllipticCurvePrivateKey):
        raise UnusableError("the authority's key is not an elliptic curve key")
    key = certificate.new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpushare-webhook")])
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    built = (
        certificate.builder(
            subject,
            authority.subject,
            key,
            valid_from=now - BACKDATED,
            valid_until=min(now + SERVING_LIFE, authority.not_valid_after_utc),
            signs_certificates=False,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(certificate.hosts(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority_key, certificate.HASH)
    )
    return dataclasses.replace(held, serving=certificate.pem(built), serving_key=certificate.key_pem(key))
