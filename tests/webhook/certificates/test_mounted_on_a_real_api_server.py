"""With mounted certificates, the webhook has no permission to write its Secret, and needs none."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
from pathlib import Path

import pytest

from gpushare import contract
from tests import builders
from tests.webhook import replica
from tests.webhook.conftest import BASE, Cluster
from webhook.certificates import rotation
from webhook.certificates.rotation import Certificates, RotationStep

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]

NAMES = ("127.0.0.1", "gpushare-webhook.gpushare-system.svc")


def put(directory: Path, held: Certificates) -> None:
    directory.mkdir(exist_ok=True)
    for name, text in (("tls.key", held.serving_key), ("tls.crt", held.serving)):
        (directory / name).write_text(text)


def test_api_server_trusts_the_issuer_after_a_renewal(cluster: Cluster, tmp_path: Path) -> None:
    cluster.kubectl(
        "delete", "--wait=false", "-k", str(BASE / "certificates")
    )  # as config/components/cert-manager does
    now = datetime.datetime.now(datetime.UTC)
    held = rotation.apply_step(RotationStep.START, None, NAMES, now=now)
    files = tmp_path / "files"
    put(files, held)
    try:
        flags = (f"--certificate-files={files}",)
        with replica.running(tmp_path / "replica", *flags, account=cluster.account) as started:
            started.wait_ready()
            target = {"url": f"https://127.0.0.1:{started.port}{contract.WEBHOOK_PATH}", "service": None}
            client = {**target, "caBundle": base64.b64encode(held.bundle.encode()).decode()}
            patch = {"webhooks": [{"name": contract.WEBHOOK_NAME, "clientConfig": client}]}
            cluster.kubectl("patch", "mutatingwebhookconfiguration", "gpushare", f"--patch={json.dumps(patch)}")
            replica.until(cluster.is_registered, started.explain)
            cluster.create_placed(builders.pod("first", request="0.5"))

            renewed = rotation.apply_step(RotationStep.ISSUE, held, NAMES, now=now + datetime.timedelta(minutes=1))
            put(files, renewed)
            replica.until(lambda: len(started.logged("Loaded a certificate")) == 2, started.explain, seconds=30)
            cluster.create_placed(builders.pod("second", request="0.5"))

            put(files, dataclasses.replace(renewed, serving_key=held.serving_key))
            message = "The mounted certificate cannot be served"
            why = "tls.key does not belong to tls.crt"  # or, in between, that one of them is half-written
            replica.until(
                lambda: any(why in line["err"] for line in started.logged(message)), started.explain, seconds=30
            )
            assert started.probe("/readyz")[0] == 200
    finally:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(BASE / "certificates"))
