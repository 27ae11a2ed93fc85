"""A webhook that speaks to the API server alone: by the certificate that the lab's shows it, as docs/operations.md says."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request

import pytest

from gpushare import contract
from tests import builders
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver


def test_the_api_server_is_answered_and_nobody_else(cluster: Cluster) -> None:
    lab = cluster.administrator.lab
    if lab is None:
        pytest.skip("whether this cluster's API server shows a certificate, nobody has said")
    started = cluster.start(f"--client-ca-file={lab.certificates / 'ca.crt'}")
    cluster.create(builders.pod(request="0.5"))
    until(cluster.is_settled, cluster.explain)
    assert started.reviews() == {"placed": 1}

    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    made_up = urllib.request.Request(f"https://127.0.0.1:{started.port}{contract.WEBHOOK_PATH}", data=b"{}")
    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
        urllib.request.urlopen(made_up, context=anyone, timeout=30)
    anyone.load_cert_chain(
        lab.certificates / "kube-apiserver-webhook-client.crt", lab.certificates / "kube-apiserver-webhook-client.key"
    )
    with pytest.raises(urllib.error.HTTPError, match="400"):  # so it was the certificate
        urllib.request.urlopen(made_up, context=anyone, timeout=30)
