"""The lab's own certificate authority and every key and certificate below it.

Elliptic curves throughout: making an RSA key takes longer than starting etcd.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import oid

LIFETIME = datetime.timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate to issue: for a client (who it is, which groups) or, with `hosts`, for a server."""

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
    """Write `ca.crt`, each identity's `NAME.crt` and `NAME.key`, and the pair that signs tokens, `sa.key`, `sa.pub`."""
    authority = _authority()
    _write_certificate(directory / "ca.crt", authority.certificate)
    for identity in identities:
        key = ec.generate_private_key(ec.SECP256R1())
        _write_certificate(directory / f"{identity.name}.crt", _issue(authority, identity, key.public_key()))
        _write_key(directory / f"{identity.name}.key", key)
    signing_key = ec.generate_private_key(ec.SECP256R1())
    _write_key(directory / "sa.key", signing_key)
    public = signing_key.public_key()
    encoded = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (directory / "sa.pub").write_bytes(encoded)


def _authority() -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, "gpushare lab")])
    certificate = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(key, certificate)


def _issue(authority: Authority, identity: Identity, public: ec.EllipticCurvePublicKey) -> x509.Certificate:
    attributes = [x509.NameAttribute(oid.NameOID.COMMON_NAME, identity.common_name)]
    attributes += [x509.NameAttribute(oid.NameOID.ORGANIZATION_NAME, group) for group in identity.groups]
    usage = oid.ExtendedKeyUsageOID.SERVER_AUTH if identity.hosts else oid.ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(x509.Name(attributes), authority.certificate.subject, public)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    if identity.hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in identity.hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def _builder(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    unprotected = serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, unprotected))
