"""Certificates of another issuer: read from a mounted Secret, changed while serving, rejected with a sentence."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.webhook.certificates.tls_client import served
from webhook import metrics, review, server
from webhook.certificates import rotation, tls
from webhook.certificates.rotation import Certificates, RotationStep
from webhook.certificates.tls import Tls

NAMES = ("gpushare-webhook.gpushare-system.svc", "gpushare-webhook.gpushare-system.svc.cluster.local")
NOW = datetime.datetime.now(datetime.UTC)


def issued(*names: str, at: datetime.datetime = NOW) -> Certificates:
    return rotation.apply_step(RotationStep.START, None, names or NAMES, now=at)


class Secret:
    """A mounted Secret as the kubelet updates it: `..data` is a link to a directory, and is replaced atomically."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir()
        self._version = 0
        for name in ("tls.crt", "tls.key"):
            (directory / name).symlink_to(f"..data/{name}")

    def put(self, **files: str) -> None:
        self._version += 1
        version = self.directory / f"..{self._version}"
        version.mkdir()
        for name, text in files.items():
            (version / name.replace("_", ".")).write_text(text)
        new = self.directory / "..data_tmp"
        new.symlink_to(version.name)
        new.replace(self.directory / "..data")

    def put_certificates(self, held: Certificates) -> None:
        self.put(tls_crt=held.serving, tls_key=held.serving_key)


class Served:
    """A Mounted with the test's clock."""

    def __init__(self, tmp_path: Path) -> None:
        self.now = NOW
        self.secret = Secret(tmp_path / "secret")
        self.tls = Tls(tmp_path / "own")
        self.measures = metrics.Metrics()
        self.mounted = tls.Mounted(
            self.tls, self.measures, directory=self.secret.directory, names=NAMES, clock=lambda: self.now
        )


@pytest.fixture
def webhook(tmp_path: Path) -> Served:
    return Served(tmp_path)


async def admit(_: review.AdmissionRequest) -> review.ReviewResponse:
    return review.allow("ignored")


def test_mounted_certificate_is_served_with_its_expiry_metric(webhook: Served) -> None:
    assert "has not been read yet" in str(webhook.mounted.missing())
    held = issued()
    webhook.secret.put_certificates(held)
    webhook.mounted.step()
    assert webhook.mounted.missing() is None
    ends = x509.load_pem_x509_certificate(held.serving.encode()).not_valid_after_utc
    value = webhook.measures.registry.get_sample_value("gpushare_webhook_certificate_expiry_timestamp_seconds")
    assert value == ends.timestamp()


async def test_a_renewed_certificate_is_served_to_new_connections(webhook: Served) -> None:
    first, second = issued(), issued()
    webhook.secret.put_certificates(first)
    webhook.mounted.step()
    async with server.serve(admit, webhook.tls.context, host="127.0.0.1", port=0) as port:
        assert await served(port) == der(first)
        webhook.secret.put_certificates(second)
        assert await served(port) == der(first)
        webhook.mounted.step()
        assert await served(port) == der(second)


def der(held: Certificates) -> bytes:
    return x509.load_pem_x509_certificate(held.serving.encode()).public_bytes(Encoding.DER)


OTHER = issued()
BAD: dict[str, tuple[Callable[[], dict[str, str]], str]] = {
    "no-files": (dict, "tls.crt is missing: mount a Secret of type kubernetes.io/tls"),
    "no-key": (lambda: {"tls_crt": OTHER.serving}, "tls.key is missing"),
    "nonsense": (lambda: {"tls_crt": "nonsense", "tls_key": OTHER.serving_key}, "tls.crt is not a PEM certificate"),
    "no-key-in-it": (
        lambda: {"tls_crt": OTHER.serving, "tls_key": "x"},
        "tls.key is not an unencrypted PEM private key",
    ),
    "another-key": (
        lambda: {"tls_crt": OTHER.serving, "tls_key": issued().serving_key},
        "tls.key does not belong to tls.crt",
    ),
    "another-name": (
        lambda: {"tls_crt": (other := issued("example.org")).serving, "tls_key": other.serving_key},
        f"tls.crt is for example.org, but the API server calls {NAMES[0]}",
    ),
    "ended": (
        lambda: {
            "tls_crt": (old := issued(at=NOW - datetime.timedelta(days=400))).serving,
            "tls_key": old.serving_key,
        },
        "tls.crt expired on",
    ),
    "not-yet": (
        lambda: {
            "tls_crt": (young := issued(at=NOW + datetime.timedelta(days=2))).serving,
            "tls_key": young.serving_key,
        },
        "tls.crt is valid only from",
    ),
}


@pytest.mark.parametrize(("files", "says"), BAD.values(), ids=BAD)
async def test_unusable_certificate_is_reported_and_the_old_one_served(
    webhook: Served, files: Callable[[], dict[str, str]], says: str
) -> None:
    webhook.secret.put(**files())
    webhook.mounted.step()
    assert says in str(webhook.mounted.missing())
    assert str(webhook.secret.directory) in str(webhook.mounted.missing())

    good = issued()
    webhook.secret.put_certificates(good)
    webhook.mounted.step()
    assert webhook.mounted.missing() is None

    webhook.secret.put(**files())
    webhook.mounted.step()
    # Clients that trusted the old one still do, so nothing is missing until it expires.
    assert webhook.mounted.missing() is None
    async with server.serve(admit, webhook.tls.context, host="127.0.0.1", port=0) as port:
        assert await served(port) == der(good)


def test_missing_directory_is_reported(webhook: Served) -> None:
    shutil.rmtree(webhook.secret.directory)
    webhook.mounted.step()
    assert "tls.crt is missing" in str(webhook.mounted.missing())


def test_expired_certificate_makes_the_replica_unready(webhook: Served) -> None:
    webhook.secret.put_certificates(issued())
    webhook.mounted.step()
    webhook.now += datetime.timedelta(days=91)
    assert "tls.crt expired on" in str(webhook.mounted.missing())
    webhook.secret.put_certificates(issued(at=webhook.now))
    webhook.mounted.step()
    assert webhook.mounted.missing() is None


def test_certificate_with_only_the_service_name_is_accepted(webhook: Served) -> None:
    webhook.secret.put_certificates(issued(NAMES[0]))
    webhook.mounted.step()
    assert webhook.mounted.missing() is None


def test_certificate_chain_is_served(webhook: Served) -> None:
    held = issued()
    chain = dataclasses.replace(held, serving=held.serving + held.trusted[0])
    webhook.secret.put_certificates(chain)
    webhook.mounted.step()
    assert webhook.mounted.missing() is None
    assert webhook.tls.loaded is not None
    assert webhook.tls.loaded.serving == chain.serving
