"""The mounted ServiceAccount and the replacement of its files. test_api_client covers real kubeconfigs."""

from __future__ import annotations

import datetime
import os
import ssl
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpushare.cluster import api_connection, api_errors

SERVICE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def authority(name: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_bytes(authority("first"))
    return tmp_path


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def trusted(tls: ssl.SSLContext | None) -> set[str]:
    assert tls is not None
    return {dict(pair for (pair,) in ca["subject"])["commonName"] for ca in tls.get_ca_certs()}


async def test_the_mounted_service_account_is_the_default_in_a_pod(mounted: Path) -> None:
    way = await api_connection.find(None, environment=SERVICE, service_account=mounted)
    assert way.access.server == "https://10.0.0.1:443"
    assert await way.authorization() == "Bearer first"
    assert trusted(way.tls) == {"first"}


async def test_ipv6_addresses_are_put_in_brackets(mounted: Path) -> None:
    way = await api_connection.find(
        None, environment={**SERVICE, "KUBERNETES_SERVICE_HOST": "fd00::1"}, service_account=mounted
    )
    assert way.access.server == "https://[fd00::1]:443"


async def test_a_replaced_token_and_ca_are_reread_within_a_minute(mounted: Path) -> None:
    clock = Clock()
    way = await api_connection.find(None, environment=SERVICE, service_account=mounted, clock=clock)
    (mounted / "token").write_text("second")
    (mounted / "ca.crt").write_bytes(authority("second"))
    os.utime(mounted / "ca.crt", ns=(1, 1))
    assert await way.authorization() == "Bearer first"
    clock.now = api_connection.REREAD_SECONDS
    assert await way.authorization() == "Bearer second"
    assert trusted(way.tls) == {"first", "second"}


async def test_a_rejected_token_is_reread_once_for_all_callers(mounted: Path) -> None:
    clock = Clock()
    way = await api_connection.find(None, environment=SERVICE, service_account=mounted, clock=clock)
    clock.now = 5.0
    headers = []
    for number in range(10):
        (mounted / "token").write_text(f"token {number}")
        headers.append(await way.authorization(refused=True))
    assert set(headers) == {"Bearer token 0"}


async def test_the_last_token_stays_in_use_while_its_file_is_missing(
    mounted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    way = await api_connection.find(None, environment=SERVICE, service_account=mounted, clock=clock)
    (mounted / "token").unlink()
    clock.now = api_connection.REREAD_SECONDS
    assert await way.authorization() == "Bearer first"
    assert "No such file" in caplog.records[-1].__dict__["err"]


async def test_missing_credentials_are_named_in_the_error(mounted: Path, tmp_path: Path) -> None:
    with pytest.raises(api_errors.ClusterError, match="KUBERNETES_SERVICE_HOST"):
        await api_connection.find(None, environment={}, service_account=mounted)
    (mounted / "token").write_text("")
    with pytest.raises(api_errors.ClusterError, match=r"token .* is empty"):
        await api_connection.find(None, environment=SERVICE, service_account=mounted)
    (mounted / "token").write_text("x")
    (mounted / "ca.crt").write_text("nothing")
    with pytest.raises(api_errors.ClusterError, match="cannot use the credentials"):
        await api_connection.find(None, environment=SERVICE, service_account=mounted)
    with pytest.raises(api_errors.ClusterError, match=r"no kubeconfig at .*/none; specify one with"):
        await api_connection.find(str(tmp_path / "none"))


async def test_a_missing_kubernetes_asyncio_is_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", None)  # this makes Python's import fail
    (tmp_path / "config").write_text("{}")
    with pytest.raises(
        api_errors.ClusterError, match=r"without the Python package kubernetes-asyncio.*neither --kubeconfig"
    ):
        await api_connection.find(str(tmp_path / "config"), service_account=tmp_path)


@pytest.mark.slow
async def test_an_invalid_kubeconfig_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("apiVersion: v1\nkind: Config\nclusters: []\ncontexts: []\nusers: []\ncurrent-context: x\n")
    with pytest.raises(api_errors.ClusterError, match=r"cannot use the kubeconfig .*/kubeconfig: .*contexts"):
        await api_connection.find(str(path))
