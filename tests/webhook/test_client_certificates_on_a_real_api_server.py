"""A webhook that accepts only the API server, by its client certificate, as docs/security.md says."""

from __future__ import annotations

import http.client
import ssl

import pytest

from gpushare import contract
from lab import api_server_files
from tests import builders
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver


def test_only_the_api_server_is_answered(cluster: Cluster) -> None:
    lab = cluster.administrator.lab
    if lab is None:
        pytest.skip("whether this cluster's API server shows a certificate, nobody has said")
    started = cluster.start(f"--client-ca-file={lab.certificates / 'ca.crt'}")
    cluster.create_placed(builders.pod(request="0.5"))
    until(cluster.is_settled, cluster.explain)
    assert sum(started.reviews().values()) == 1

    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(OSError, match=r"(?i)certificate|reset|closed|eof|broken"):
        made_up(started.port, anyone)
    name = api_server_files.WEBHOOK_CLIENT
    anyone.load_cert_chain(lab.certificates / f"{name}.crt", lab.certificates / f"{name}.key")
    assert made_up(started.port, anyone) == 400  # so it was the certificate


def made_up(port: int, context: ssl.SSLContext) -> int:
    """Return the status of the answer to a body that is not a review."""
    client = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
    try:
        client.request("POST", contract.WEBHOOK_PATH, body="{}", headers={"Content-Type": "application/json"})
        return client.getresponse().status
    finally:
        client.close()
