"""The TLS context of the server, and certificates of another issuer, such as cert-manager, from a mounted Secret.

The issuer also makes the API server trust them. If the Secret becomes invalid, the loaded certificate is served until
it expires.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
import os
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from webhook.certificates import rotation
from webhook.certificates.rotation import Certificates
from webhook.metrics import Metrics

logger = logging.getLogger(__name__)


class Tls:
    """A live TLS context: a certificate that is loaded is served to every later connection.

    directory: where the certificates are stored as files, because the ssl module loads only files. client_ca_file:
    accept only clients with a certificate of one of these authorities; None: accept all. Raises OSError (or
    ssl.SSLError) if that file cannot be loaded.
    """

    def __init__(self, directory: Path, client_ca_file: Path | None = None) -> None:
        self._directory = directory
        self._directory.mkdir(parents=True, exist_ok=True)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        if client_ca_file is not None:
            self.context.load_verify_locations(client_ca_file)
            self.context.verify_mode = ssl.CERT_REQUIRED
        self.loaded: Certificates | None = None

    def load(self, held: Certificates) -> bool:
        """Serve these certificates from now on; return whether they are new."""
        if held == self.loaded:
            return False
        serving, key = self._directory / "tls.crt", self._directory / "tls.key"
        _write(self._directory / "ca.crt", held.bundle, 0o644)
        _write(serving, held.serving, 0o644)
        _write(key, held.serving_key, 0o600)
        self.context.load_cert_chain(serving, key)
        self.loaded = held
        return True


def _write(path: Path, text: str, mode: int) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    new.replace(path)


LOOK_SECONDS: Final = 10.0  # the kubelet itself takes about a minute to update a mounted Secret
CERTIFICATE, KEY = "tls.crt", "tls.key"


@dataclasses.dataclass(eq=False)
class Mounted:
    """Serves the certificate in a directory. names: how the API server may reach us, the one it uses first."""

    tls: Tls
    metrics: Metrics
    _: dataclasses.KW_ONLY
    directory: Path
    names: Sequence[str]
    clock: Callable[[], datetime.datetime] = rotation.utc_now

    def __post_init__(self) -> None:
        self._name = self.names[0]
        self._ends: datetime.datetime | None = None
        self._problem: str | None = f"the certificate in {self.directory} has not been read yet"

    def missing(self) -> str | None:
        if self._ends is not None and self.clock() < self._ends:
            return None
        return self._problem or (f"{self.directory}: {_ended(self._ends)}" if self._ends else None)

    async def run(self) -> None:
        while True:
            self.step()
            await asyncio.sleep(LOOK_SECONDS)

    def step(self) -> None:
        try:
            held = _read(self.directory)
            ends = check(held, self._name, now=self.clock())
        except rotation.UnusableError as error:
            problem = f"{self.directory}: {error}"
            if problem != self._problem:
                logger.warning("The mounted certificate cannot be served", extra={"err": problem})
            self._problem = problem
            return
        self._problem = None
        self._ends = ends
        if self.tls.load(held):
            self.metrics.certificate_ends(ends.timestamp())
            logger.info("Loaded a certificate", extra={"directory": str(self.directory), "ends": ends.isoformat()})


def check(held: Certificates, name: str, *, now: datetime.datetime) -> datetime.datetime:
    """Return when the certificate expires. Raises UnusableError if it cannot be served under `name` now. Pure."""
    try:
        serving = x509.load_pem_x509_certificates(held.serving.encode())[0]
    except ValueError as error:
        raise rotation.UnusableError(f"{CERTIFICATE} is not a PEM certificate ({error})") from error
    try:
        key = serialization.load_pem_private_key(held.serving_key.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise rotation.UnusableError(f"{KEY} is not an unencrypted PEM private key ({error})") from error
    if serving.public_key() != key.public_key():
        raise rotation.UnusableError(f"{KEY} does not belong to {CERTIFICATE}: use both files of the same certificate")
    names = rotation.names_of(serving)
    if name not in names:
        listed = ", ".join(sorted(names)) or "no name"
        raise rotation.UnusableError(
            f"{CERTIFICATE} is for {listed}, but the API server calls {name}: add {name} to its dnsNames"
        )
    if serving.not_valid_after_utc <= now:
        raise rotation.UnusableError(_ended(serving.not_valid_after_utc))
    if serving.not_valid_before_utc > now:
        raise rotation.UnusableError(f"{CERTIFICATE} is valid only from {serving.not_valid_before_utc:%Y-%m-%d %H:%M}")
    return serving.not_valid_after_utc


def _ended(ends: datetime.datetime) -> str:
    remedy = "renew it; for cert-manager, see kubectl describe certificate"
    return f"{CERTIFICATE} expired on {ends:%Y-%m-%d %H:%M}: {remedy}"


def _read(directory: Path) -> Certificates:
    texts = {}
    # The kubelet replaces the whole directory: read both files from the same version.
    version = (directory / CERTIFICATE).resolve().parent
    for name in (CERTIFICATE, KEY):
        try:
            texts[name] = (version / name).read_text()
        except FileNotFoundError as error:
            raise rotation.UnusableError(f"{name} is missing: mount a Secret of type kubernetes.io/tls") from error
        except (OSError, ValueError) as error:
            raise rotation.UnusableError(f"{name} cannot be read ({error})") from error
    return Certificates((), "", texts[CERTIFICATE], texts[KEY])
