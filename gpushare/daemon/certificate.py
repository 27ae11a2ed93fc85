"""The common parts of all our certificates. Elliptic curves, because making an RSA key takes seconds."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HASH: Final = hashes.SHA256()


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new key on NIST's curve P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    valid_from: datetime.datetime,
    valid_until: datetime.datetime,
    signs_certificates: bool,
) -> x509.CertificateBuilder:
    """Return a builder for a certificate of `key` with a random serial number, to be extended and signed."""
    usage = x509.KeyUsage(
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
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid_from)
        .not_valid_after(valid_until)
        .add_extension(x509.BasicConstraints(signs_certificates, 0 if signs_certificates else None), critical=True)
        .add_extension(usage, critical=True)
    )


def hosts(names: Iterable[str]) -> x509.SubjectAlternativeName:
    """Return a subjectAltName extension for a server's names and addresses."""
    listed: list[x509.GeneralName] = []
    for name in names:
        try:
            listed.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            listed.append(x509.DNSName(name))
    return x509.SubjectAlternativeName(listed)


def pem(certificate: x509.Certificate) -> str:
    """Return the certificate in PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the key in PEM, unencrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
