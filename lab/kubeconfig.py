"""Writes kubeconfig files with embedded credentials, so that they can be copied anywhere."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml


def with_certificate(server: str, ca_file: Path, certificate: Path, key: Path) -> str:
    """Return a kubeconfig for a client with a certificate."""
    user = {"client-certificate-data": _data(certificate), "client-key-data": _data(key)}
    return _render(server, ca_file, user, namespace="default")


def with_token(server: str, ca_file: Path, token: str, namespace: str) -> str:
    """Return a kubeconfig for a client with a bearer token, such as a ServiceAccount."""
    return _render(server, ca_file, {"token": token}, namespace)


def write(path: Path, text: str) -> None:
    """Write a kubeconfig atomically, readable by its owner only."""
    scratch = path.with_name(path.name + ".new")
    scratch.touch(mode=0o600)
    scratch.write_text(text)
    scratch.rename(path)


def _render(server: str, ca_file: Path, user: dict[str, str], namespace: str) -> str:
    cluster = {"server": server, "certificate-authority-data": _data(ca_file)}
    context = {"cluster": "lab", "user": "lab", "namespace": namespace}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "lab", "user": user}],
        "contexts": [{"name": "lab", "context": context}],
        "current-context": "lab",
    }
    return yaml.safe_dump(document, sort_keys=False)


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
