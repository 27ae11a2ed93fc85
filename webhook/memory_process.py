"""One webhook process on a cluster in memory."""

from __future__ import annotations

import dataclasses
import datetime
import logging
from pathlib import Path

from gpushare.daemon import probes, shutdown
from webhook import admission, memory_cluster, metrics, server
from webhook.certificates import issuing
from webhook.certificates.rotation import RotationStep
from webhook.certificates.tls import Tls
from webhook.controllers.gated_pods import backfill
from webhook.store import reservation
from webhook.webhook_settings import WebhookSettings

logger = logging.getLogger(__name__)


async def run(settings: WebhookSettings, source: Path, daemon: shutdown.Daemon) -> None:
    """Serve until told to stop."""
    measures = metrics.Metrics()
    ledger_now, pods = memory_cluster.read(source)
    reserving = reservation.Reservation(ledger_now, policy=settings.policy, on_conflict=measures.conflicted)
    cluster = memory_cluster.MemoryCluster(
        ledger_now,
        admission.Admission(ledger_now, reserving, measures),
        reserving,
        measures,
        pods,
        settings.state,
        bound=dataclasses.replace(backfill.DEFAULT, patience_seconds=settings.patience_seconds),
    )
    await cluster.place()
    tls = Tls(settings.certificate_directory, settings.client_ca_file)
    tls.load(issuing.take(RotationStep.START, None, settings.names, now=datetime.datetime.now(datetime.UTC)))
    async with (
        server.serve(cluster.admit, tls.context, host=settings.host, port=settings.port) as port,
        probes.serve({}, measures.registry, host=settings.probe_host, port=settings.probe_port) as probe_port,
    ):
        logger.info(
            "Serving a cluster in memory",
            extra={
                "port": port,
                "probe_port": probe_port,
                "from": str(source),
                "gpunodes": len(list(ledger_now.views())),
            },
        )
        if settings.port_file is not None:
            settings.port_file.write_text(f"{port}\n")
        await daemon.stopping.wait()
