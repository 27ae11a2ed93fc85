"""Issuing: makes keys and certificates, one rotation step at a time."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpushare.daemon import certificate
from webhook.certificates import rotation
from webhook.certificates.rotation import Certificates, RotationStep


def apply_step(
    step: RotationStep, held: Certificates | None, names: Sequence[str], *, now: datetime.datetime
) -> Certificates:
    """Return the certificates after one step."""
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
            name,
            name,
            key,
            valid_from=now - rotation.BACKDATED,
            valid_until=now + rotation.AUTHORITY_LIFE,
            signs_certificates=True,
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
        raise rotation.UnusableError("the authority's key is not an elliptic curve key")
    key = certificate.new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpushare-webhook")])
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    built = (
        certificate.builder(
            subject,
            authority.subject,
            key,
            valid_from=now - rotation.BACKDATED,
            valid_until=min(now + rotation.SERVING_LIFE, authority.not_valid_after_utc),
            signs_certificates=False,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(certificate.hosts(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority_key, certificate.HASH)
    )
    return dataclasses.replace(held, serving=certificate.pem(built), serving_key=certificate.key_pem(key))
