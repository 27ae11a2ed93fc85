"""Creates the lab's certificate authority, and all keys and certificates that it signs."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import oid

from gpushare.daemon import certificate

LIFETIME = datetime.timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate to issue: for a client (user name and groups) or, with `hosts`, for a server."""

    name: str
    common_name: str
    groups: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Authority:
    """The certificate authority: its key and its own certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def create(directory: Path, identities: Sequence[Identity]) -> None:
    """Write `ca.crt`, each identity's `NAME.crt` and `NAME.key`, and the key pair for signing tokens, `sa.key` and
    `sa.pub`.
    """
    authority = _authority()
    (directory / "ca.crt").write_text(certificate.pem(authority.certificate))
    for identity in identities:
        key = certificate.new_key()
        (directory / f"{identity.name}.crt").write_text(certificate.pem(_issue(authority, identity, key)))
        _write_key(directory / f"{identity.name}.key", key)
    signing_key = certificate.new_key()
    _write_key(directory / "sa.key", signing_key)
    public = signing_key.public_key()
    encoded = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (directory / "sa.pub").write_bytes(encoded)


def _authority() -> Authority:
    key = certificate.new_key()
    name = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, "gpushare lab")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    built = _builder(name, name, key, signs_certificates=True).add_extension(identifier, critical=False)
    return Authority(key, built.sign(key, certificate.HASH))


def _issue(authority: Authority, identity: Identity, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    attributes = [x509.NameAttribute(oid.NameOID.COMMON_NAME, identity.common_name)]
    attributes += [x509.NameAttribute(oid.NameOID.ORGANIZATION_NAME, group) for group in identity.groups]
    usage = oid.ExtendedKeyUsageOID.SERVER_AUTH if identity.hosts else oid.ExtendedKeyUsageOID.CLIENT_AUTH
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(x509.Name(attributes), authority.certificate.subject, key, signs_certificates=False)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(issuer, critical=False)
    )
    if identity.hosts:
        builder = builder.add_extension(certificate.hosts(identity.hosts), critical=False)
    return builder.sign(authority.key, certificate.HASH)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, signs_certificates: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return certificate.builder(
        subject,
        issuer,
        key,
        valid_from=now - datetime.timedelta(hours=1),
        valid_until=now + LIFETIME,
        signs_certificates=signs_certificates,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_text(certificate.key_pem(key))
