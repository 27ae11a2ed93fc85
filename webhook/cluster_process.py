"""One webhook process on a real cluster: what is started, in which order, and what readiness means."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import secrets
from collections.abc import Mapping
from typing import Any, Final

from gpushare import contract
from gpushare.cluster import api_client, election, events
from gpushare.daemon import garbage, probes, shutdown
from gpushare.placement_profile import PlacementProfile
from webhook import admission, metrics, server
from webhook.certificates import ca_bundle
from webhook.certificates.certificate_controller import CertificateController
from webhook.certificates.mounted import Mounted
from webhook.certificates.rotation import Certificates
from webhook.certificates.tls import Tls
from webhook.controllers import defragmenter
from webhook.controllers.allocations.allocation_controller import AllocationController
from webhook.controllers.cluster_figures import ClusterFigures
from webhook.controllers.evictor import Evictor
from webhook.controllers.gated_pods import backfill
from webhook.controllers.gated_pods.gates import Gates
from webhook.controllers.profile_publisher import ProfilePublisher
from webhook.controllers.resize.resizer import Resizer
from webhook.placer import Placer
from webhook.planner import process
from webhook.store import reservation
from webhook.store.api_store import ApiStore
from webhook.webhook_settings import WebhookSettings

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 2.0


async def run(settings: WebhookSettings, daemon: shutdown.Daemon) -> None:
    """Serve, and place when elected, until told to stop."""
    measures = metrics.Metrics()
    async with api_client.connect(settings.kubeconfig, component="webhook") as api:

        async def register(held: Certificates) -> None:
            await ca_bundle.register(api, held.bundle, url=settings.url)

        recorder = events.Recorder(api, controller=f"{contract.GROUP_NAME}/placer", instance=settings.instance)

        def unwritable(node: Mapping[str, Any], why: str) -> None:
            note = f"the API server does not store the shares of this node, which is taken last for a minute: {why}"
            recorder.record(node, contract.EVENT_UNWRITTEN, note, type="Warning", action="Write")

        lifetime_seconds = float(settings.reservation_seconds)
        ledger_now = ApiStore(api, measures, on_refused=unwritable, lifetime_seconds=lifetime_seconds)
        reserving = reservation.Reservation(
            ledger_now,
            policy=settings.policy,
            lifetime_seconds=lifetime_seconds,
            on_conflict=measures.conflicted,
        )
        admitting = admission.Admission(ledger_now, reserving, measures)
        tls = Tls(settings.certificate_directory, settings.client_ca_file)
        keeper: CertificateController | Mounted
        if settings.certificate_files is None:
            keeper = CertificateController(
                api,
                tls,
                register,
                measures,
                namespace=settings.namespace,
                names=settings.names,
                spread=datetime.timedelta(seconds=settings.rotation_seconds),
            )
        else:
            keeper = Mounted(tls, measures, directory=settings.certificate_files, names=settings.names)
        checks: dict[str, probes.Check] = {
            "ledger": ledger_now.missing,
            "api": ledger_now.silence,
            "certificate": keeper.missing,
            "running": lambda: "shutting down" if daemon.stopping.is_set() else None,
        }
        daemon.start("ledger", ledger_now.run())
        daemon.start("garbage", garbage.freeze_when_ready(ledger_now.synced()))
        daemon.start("certificates", keeper.run())
        daemon.start("events", recorder.run())
        if settings.placer:
            _start_placer(settings, daemon, api, ledger_now, reserving, recorder, measures)
        try:
            async with (
                probes.serve(
                    checks, measures.registry, host=settings.probe_host, port=settings.probe_port
                ) as probe_port,
                server.serve(admitting.answer, tls.context, host=settings.host, port=settings.port) as port,
            ):
                logger.info("Serving", extra={"port": port, "probe_port": probe_port, "names": list(settings.names)})
                if settings.port_file is not None:
                    settings.port_file.write_text(f"{port}\n")
                await daemon.stopping.wait()
        finally:
            # While we can still speak: the Lease is given back, and nobody who waits is left without an answer.
            await recorder.flush(FLUSH_SECONDS)
            await daemon.end_tasks()
            await ledger_now.close()


def _start_placer(
    settings: WebhookSettings,
    daemon: shutdown.Daemon,
    api: api_client.ApiClient,
    ledger_now: ApiStore,
    reserving: reservation.Reservation,
    recorder: events.Recorder,
    measures: metrics.Metrics,
) -> None:
    def elected() -> None:
        ledger_now.contention.leads = True
        measures.leads(True)
        placer.wake()

    def deposed() -> None:
        ledger_now.contention.leads = False
        measures.leads(False)
        measures.waiting({}, longest_seconds=0.0)
        measures.stuck(0)
        measures.resizes_waiting(0)

    existing = election.Election(
        api,
        namespace=settings.namespace,
        name=contract.PLACER_LEASE,
        me=f"{settings.instance}-{secrets.token_hex(4)}",
        started=elected,
        stopped=deposed,
    )
    opening = Gates(
        api,
        ledger_now,
        reserving,
        recorder,
        measures,
        bound=dataclasses.replace(backfill.DEFAULT, patience_seconds=settings.patience_seconds),
        wall_clock=api.time,
    )
    resizer = Resizer(api, ledger_now, recorder, measures, grew=opening.passes.grew)
    placer = Placer(
        ledger_now,
        AllocationController(
            api,
            ledger_now,
            recorder,
            measures,
            lifetime_seconds=settings.reservation_seconds,
            is_first=lambda: existing.is_first,
            resizes=resizer.waiting_on,
        ),
        opening,
        leads=lambda: existing.is_leader,
        resizer=resizer,
        evictions=Evictor(api, recorder, measures, after_seconds=settings.stuck_seconds),
    )
    figures = ClusterFigures(
        leads=lambda: existing.is_leader, nodes=ledger_now.stored, mix=lambda: ledger_now.chooser.mix
    )
    measures.registry.register(figures)
    daemon.start("figures", figures.run())
    publisher = ProfilePublisher(
        api,
        profile=lambda: PlacementProfile(settings.policy, ledger_now.chooser.mix),
        leads=lambda: existing.is_leader,
    )
    daemon.start("profile", publisher.run())
    if settings.defrag != defragmenter.OFF:
        defragmentation = defragmenter.Defragmenter(
            api,
            recorder,
            measures,
            mode=settings.defrag,
            every_seconds=settings.defrag_seconds,
            plan=lambda settled: process.suggest(
                process.Question(
                    PlacementProfile(settings.policy, ledger_now.chooser.mix).data(),
                    settings.defrag_moves,
                    settled,
                    defragmenter.MIN_GAIN,
                    settings.kubeconfig,
                )
            ),
            nodes=ledger_now.stored,
            pods=lambda: ledger_now.pods.objects,
            leads=lambda: existing.is_leader,
            wall_clock=api.time,
        )
        daemon.start("defragmentation", defragmentation.run())
    daemon.start("placer", placer.run())
    daemon.start("election", existing.run())
