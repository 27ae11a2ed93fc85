"""Issuing: makes keys and certificates, one step of `certificates` at a time."""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from webhook.certificates import rotation
from webhook.certificates.rotation import Certificates, Step

_HASH = hashes.SHA256()


def take(step: Step, held: Certificates | None, names: Sequence[str], *, now: datetime.datetime) -> Certificates:
    """The certificates after one step."""
    if held is None or step is Step.START:
        certificate, key = _authority(now)
        return _with_new_serving(Certificates((certificate,), key, "", ""), names, now)
    match step:
        case Step.TRUST_NEW_AUTHORITY:
            certificate, key = _authority(now)
            return dataclasses.replace(held, trusted=(certificate, *held.trusted), authority_key=key)
        case Step.ISSUE:
            return _with_new_serving(held, names, now)
        case Step.FORGET_OLD_AUTHORITIES:
            return dataclasses.replace(held, trusted=held.trusted[:1])
        case _:
            return held


def _authority(now: datetime.datetime) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpushare webhook authority {now:%Y-%m-%d %H:%M}")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    built = (
        _builder(name, name, key, now, rotation.AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, _HASH)
    )
    return _pem(built), _key_pem(key)


def _with_new_serving(held: Certificates, names: Sequence[str], now: datetime.datetime) -> Certificates:
    authority = x509.load_pem_x509_certificate(held.trusted[0].encode())
    authority_key = serialization.load_pem_private_key(held.authority_key.encode(), password=None)
    if not isinstance(authority_key, ec.EllipticCurvePrivateKey):
        raise rotation.UnusableError("the authority's key is of a kind that we do not make")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpushare-webhook")])
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    life = min(rotation.SERVING_LIFE, authority.not_valid_after_utc - now)
    built = (
        _builder(subject, authority.subject, key, now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority_key, _HASH)
    )
    return dataclasses.replace(held, serving=_pem(built), serving_key=_key_pem(key))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    life: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - rotation.BACKDATED)
        .not_valid_after(now + life)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
