"""One webhook process on a real cluster: which parts it starts, in which order, and what readiness means."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import secrets
from collections.abc import Mapping
from typing import Any, Final

from gpushare import contract, isolation
from gpushare.borrowing import Placeholder
from gpushare.cluster import api_client, election, events
from gpushare.daemon import lifecycle, probes
from gpushare.whatif.node_demand import GpuKind
from webhook import server
from webhook.admission import Admission
from webhook.certificates.certificate_controller import CertificateController
from webhook.certificates.tls import Mounted, Tls
from webhook.controllers.allocation_controller import AllocationController
from webhook.controllers.borrow import placeholders
from webhook.controllers.borrow.borrow_controller import BorrowController, BorrowSettings
from webhook.controllers.demand.demand_controller import DemandController, DemandSettings
from webhook.controllers.evictor import Evictor
from webhook.controllers.gated_pods.fairness import DEFAULT_LIMITS
from webhook.controllers.gated_pods.gated_pods import GatedPodScheduler
from webhook.controllers.leader_reports import ClusterFigures
from webhook.controllers.preemption.preemptor import Preemptor
from webhook.controllers.resizer import Resizer
from webhook.controllers.touched_nodes import TouchedNodes
from webhook.metrics import Metrics
from webhook.placer import Placer, RoomMaker
from webhook.store.api_store import ApiStore
from webhook.store.reservation import Reservation
from webhook.webhook_settings import WebhookSettings

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 2.0


async def run(settings: WebhookSettings, daemon: lifecycle.Daemon) -> None:
    metrics = Metrics()
    async with api_client.connect(settings.kubeconfig, component="webhook") as api:
        recorder = events.Recorder(api, controller=f"{contract.GROUP_NAME}/placer", instance=settings.instance)

        def unwritable(node: Mapping[str, Any], why: str) -> None:
            note = f"the API server rejects the shares on this node, so it is used last for a minute: {why}"
            recorder.record(node, contract.EVENT_UNWRITTEN, note, type="Warning", action="Write")

        seconds = float(settings.reservation_seconds)
        policy, conflicted = settings.policy, metrics.conflicted
        store = ApiStore(
            api,
            metrics,
            on_refused=unwritable,
            policy=policy,
            preemption=settings.preemption,
            isolation=settings.default_isolation,
            lifetime_seconds=seconds,
        )
        reservation = Reservation(store, policy=policy, lifetime_seconds=seconds, on_conflict=conflicted)
        admission = Admission(store, reservation, metrics)
        tls = Tls(settings.certificate_directory, settings.client_ca_file)
        keeper: CertificateController | Mounted
        if settings.certificate_files is None:
            keeper = CertificateController(
                api,
                tls,
                metrics,
                namespace=settings.namespace,
                names=settings.names,
                url=settings.url,
                spread=datetime.timedelta(seconds=settings.rotation_seconds),
            )
        else:
            keeper = Mounted(tls, metrics, directory=settings.certificate_files, names=settings.names)
        checks: dict[str, probes.Check] = {
            "ledger": store.missing,
            "api": store.silence,
            "certificate": keeper.missing,
            "running": lambda: "shutting down" if daemon.stopping.is_set() else None,
        }
        daemon.start("ledger", store.run())
        daemon.start("garbage", lifecycle.freeze_objects_when_ready(store.synced()))
        daemon.start("certificates", keeper.run())
        daemon.start("events", recorder.run())
        if settings.placer:
            _start_placer(settings, daemon, api, store, reservation, recorder, metrics)
        try:
            async with (
                probes.serve(
                    checks, metrics.registry, host=settings.probe_host, port=settings.probe_port
                ) as probe_port,
                server.serve(admission.answer, tls.context, host=settings.host, port=settings.port) as port,
            ):
                logger.info("Serving", extra={"port": port, "probe_port": probe_port, "names": list(settings.names)})
                if settings.port_file is not None:
                    settings.port_file.write_text(f"{port}\n")
                await daemon.stopping.wait()
        finally:
            # While the API client is still open: release the Lease, and answer requests that still wait.
            await recorder.flush(FLUSH_SECONDS)
            await daemon.end_tasks()
            await store.close()


def _start_placer(
    settings: WebhookSettings,
    daemon: lifecycle.Daemon,
    api: api_client.ApiClient,
    store: ApiStore,
    reservation: Reservation,
    recorder: events.Recorder,
    metrics: Metrics,
) -> None:
    def elected() -> None:
        store.lead(True)
        metrics.leads(True)
        if demand is not None:
            demand.elected()
        if borrow is not None:
            borrow.elected()
        placer.wake()

    def deposed() -> None:
        store.lead(False)
        metrics.leads(False)
        metrics.waiting({}, longest_seconds=0.0)
        metrics.stuck(0)
        metrics.resizes_waiting(0)
        metrics.demanded(0)
        metrics.borrowed(0)

    def warn(about: str | Placeholder, reason: str, note: str) -> None:
        regarding = store.document(about) if isinstance(about, str) else placeholders.reference(about)
        if regarding is not None:
            recorder.record(regarding, reason, note, type="Warning", action="Borrow")

    leadership = election.Election(
        api,
        namespace=settings.namespace,
        name=contract.PLACER_LEASE,
        me=f"{settings.instance}-{secrets.token_hex(4)}",
        started=elected,
        stopped=deposed,
    )
    demand = None
    if settings.demand_resource:
        kinds = tuple(GpuKind.named(product, size) for product, size in settings.demand_products)
        asked = DemandSettings(
            settings.demand_resource, settings.demand_max_gpus, kinds, settings.demand_provisioning_class
        )
        demand = DemandController(api, store, reservation, asked, report=metrics.demanded, wall_clock=api.time)
    borrow = None
    if settings.borrow_max_gpus:
        borrow = BorrowController(
            api,
            store,
            reservation,
            BorrowSettings(settings.borrow_max_gpus, float(settings.borrow_idle_seconds)),
            warn=warn,
            report=metrics.borrowed,
            wall_clock=api.time,
        )
    preemptor = None
    if settings.preemption:
        preemptor = Preemptor(
            api, store, store.pods.objects, recorder, metrics, settings.policy, leads=lambda: leadership.is_leader
        )
    scheduler = GatedPodScheduler(
        api,
        store,
        reservation,
        recorder,
        metrics,
        limits=dataclasses.replace(DEFAULT_LIMITS, patience_seconds=settings.patience_seconds),
        make_room=RoomMaker(borrow, preemptor, demand).reconcile,
        preempts=preemptor is not None,
        wall_clock=api.time,
    )
    resizer = Resizer(api, store, recorder, metrics, grew=scheduler.overtakes.grew)
    touched_nodes = TouchedNodes()
    allocations = AllocationController(
        api,
        store,
        touched_nodes,
        recorder,
        metrics,
        lifetime_seconds=settings.reservation_seconds,
        is_first=lambda: leadership.is_first,
        resizes=resizer.waiting_on,
    )
    placer = Placer(
        store,
        touched_nodes,
        allocations,
        scheduler,
        leads=lambda: leadership.is_leader,
        resizer=resizer,
        demand=demand,
        borrow=borrow,
        preemptor=preemptor,
        evictor=Evictor(api, recorder, metrics, after_seconds=settings.stuck_seconds),
    )
    figures = ClusterFigures(
        leads=lambda: leadership.is_leader,
        nodes=store.stored,
        mix=lambda: store.chooser.mix,
        kinds=isolation.default_kinds(settings.default_isolation),
    )
    metrics.registry.register(figures)
    daemon.start("figures", figures.run())
    daemon.start("placer", placer.run())
    daemon.start("election", leadership.run())
