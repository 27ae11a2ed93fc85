"""The TLS context of the server, and certificates loaded into it while it serves."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from webhook.certificates.rotation import Certificates


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
    """Write the file atomically, created with `mode`."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    new.replace(path)
