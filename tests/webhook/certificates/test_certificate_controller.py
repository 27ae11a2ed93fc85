"""Certificates on a real API server: shared by replicas, trusted before they are served, changed while serving."""

from __future__ import annotations

import asyncio
import base64
import datetime
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509

from gpushare import contract
from gpushare.cluster import api_client
from lab import access
from tests.webhook.certificates.tls_client import served
from webhook import metrics, review, server
from webhook.certificates import certificate_controller, rotation
from webhook.certificates.certificate_controller import RETRY_SECONDS, CertificateController
from webhook.certificates.tls import Tls

pytestmark = pytest.mark.apiserver

NAMES = ("127.0.0.1",)
LOOK_SECONDS = 60.0  # 15 minutes between the steps
SECRET = f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/secrets/{contract.CERTIFICATE_SECRET}"


class Replica:
    """The certificate controller of one replica, with the test's clock."""

    def __init__(self, api: api_client.ApiClient, directory: Path) -> None:
        self.now = datetime.datetime.now(datetime.UTC)
        self.tls = Tls(directory)
        self.measures = metrics.Metrics()
        options = {"namespace": contract.SYSTEM_NAMESPACE, "names": NAMES, "url": "https://127.0.0.1:1/mutate"}
        self.keeper = CertificateController(api, self.tls, self.measures, clock=lambda: self.now, **options)  # type: ignore[arg-type]


@pytest.fixture
async def api(manifests: access.Access) -> AsyncIterator[api_client.ApiClient]:
    async with api_client.connect(str(manifests.kubeconfig), component="test") as opened:
        await opened.patch(SECRET, {"data": None})
        yield opened


async def trusted(api: api_client.ApiClient) -> tuple[str, ...]:
    """Return the authorities in the configuration, which are the same for each webhook."""
    webhooks = (await api.get(certificate_controller.PATH))["webhooks"]
    (bundle,) = {webhook["clientConfig"]["caBundle"] for webhook in webhooks}
    return rotation.split(base64.b64decode(bundle).decode())


async def admit(_: review.AdmissionRequest) -> review.ReviewResponse:
    return review.allow("ignored")


async def test_replicas_share_one_certificate(api: api_client.ApiClient, tmp_path: Path) -> None:
    replicas = [Replica(api, tmp_path / str(number)) for number in range(3)]
    assert replicas[0].keeper.missing() == "the certificate has not been loaded yet"
    pauses = await asyncio.gather(*(replica.keeper.step() for replica in replicas))
    assert pauses == [LOOK_SECONDS] * 3
    (first, *others) = [replica.tls.loaded for replica in replicas]
    assert first is not None
    assert others == [first, first]
    assert await trusted(api) == first.trusted
    assert [replica.keeper.missing() for replica in replicas] == [None] * 3


async def test_a_new_certificate_is_served_without_a_restart(api: api_client.ApiClient, tmp_path: Path) -> None:
    replica = Replica(api, tmp_path)
    await replica.keeper.step()
    async with server.serve(admit, replica.tls.context, host="127.0.0.1", port=0) as port:
        before = await served(port)
        await replica.keeper.step()
        assert await served(port) == before
        replica.now += datetime.timedelta(days=61)
        await replica.keeper.step()
        after = await served(port)
    assert after != before
    ends = x509.load_der_x509_certificate(after).not_valid_after_utc
    assert ends == replica.now.replace(microsecond=0) + rotation.SERVING_LIFE
    value = replica.measures.registry.get_sample_value("gpushare_webhook_certificate_expiry_timestamp_seconds")
    assert value == ends.timestamp()


async def test_a_new_authority_is_trusted_before_it_is_used(api: api_client.ApiClient, tmp_path: Path) -> None:
    replica = Replica(api, tmp_path)
    await replica.keeper.step()
    replica.now += datetime.timedelta(days=244)
    await replica.keeper.step()  # the serving certificate first, or the authority: one step at a time
    await replica.keeper.step()
    assert replica.tls.loaded is not None
    assert len(await trusted(api)) == 2
    assert await trusted(api) == replica.tls.loaded.trusted
    for _ in range(3):
        replica.now += rotation.SPREAD
        await replica.keeper.step()
    assert len(await trusted(api)) == 1


async def test_an_administrator_asks_for_a_new_authority_and_gets_one(
    api: api_client.ApiClient, tmp_path: Path
) -> None:
    replica = Replica(api, tmp_path)
    await replica.keeper.step()
    before = await trusted(api)
    await api.patch(SECRET, {"metadata": {"annotations": {contract.ROTATE: "now", "somebody/else": "stays"}}})
    for expected in (2, 2, 1, 1):
        await replica.keeper.step()
        assert len(await trusted(api)) == expected
        notes = (await api.get(SECRET))["metadata"]["annotations"]
        assert notes == {"somebody/else": "stays"}
        replica.now += rotation.SPREAD / 2
        await replica.keeper.step()
        replica.now += rotation.SPREAD / 2
    assert not {*before} & {*await trusted(api)}


async def test_invalid_secret_is_reissued(api: api_client.ApiClient, tmp_path: Path) -> None:
    await api.patch(SECRET, {"data": {"ca.crt": base64.b64encode(b"nonsense").decode()}})
    replica = Replica(api, tmp_path)
    assert await replica.keeper.step() == LOOK_SECONDS
    assert replica.tls.loaded is not None


async def test_missing_manifests_are_named(api: api_client.ApiClient, tmp_path: Path) -> None:
    config = await api.get(certificate_controller.PATH)
    await api.delete(certificate_controller.PATH)
    replica = Replica(api, tmp_path)
    try:
        assert await replica.keeper.step() == RETRY_SECONDS
        assert replica.keeper.missing() == ("there is no MutatingWebhookConfiguration gpushare: install config/default")
    finally:
        kept = {key: config["metadata"][key] for key in ("name", "labels") if key in config["metadata"]}
        await api.create(certificate_controller.PATH.rpartition("/")[0], {**config, "metadata": kept})
    assert await replica.keeper.step() == LOOK_SECONDS
    assert replica.keeper.missing() is None


def test_only_differences_are_written() -> None:
    encoded = base64.b64encode(b"bundle").decode()
    assert certificate_controller.difference({"caBundle": encoded, "service": {"name": "s"}}, "bundle", url=None) == {}
    assert certificate_controller.difference({"caBundle": encoded, "url": "u"}, "bundle", url="u") == {}
    assert certificate_controller.difference({"caBundle": "", "service": {"name": "s"}}, "bundle", url="u") == {
        "caBundle": encoded,
        "url": "u",
        "service": None,
    }
