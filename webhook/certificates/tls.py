"""The TLS context that the server uses, and new certificates loaded into it while it serves."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from webhook.certificates.rotation import Certificates


class Tls:
    """`context` is live: what `load` gives it is served to every connection made afterwards.

    directory: where the certificates are kept as files, because the ssl module loads nothing else. client_ca_file: only
    who has a certificate of one of these authorities is spoken to; None: everybody. Raises OSError (ssl.SSLError, too)
    where that is not a file of certificates.
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
        """Serve these from now on; return whether anything changed."""
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
    """Whole or not at all, and never readable by more than `mode` says, not even for a moment."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    new.replace(path)
