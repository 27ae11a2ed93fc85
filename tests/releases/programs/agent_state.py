"""The agent's files on disk. Each is written and read as the release does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deviceplugin.arbiter import share_ledger
from deviceplugin.arbiter.share_ledgers import ShareUse
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.audit.overhead import ContextCheckpoint
from deviceplugin.hardware.gpu_health import Fault, FaultLog
from deviceplugin.modes import mode_checkpoint
from deviceplugin.report.share_peaks import Peaks
from gpushare.config.config_choice import ActiveConfig
from gpushare.gpunode import Mode
from gpushare.modes.assignment import Assignment


def writes_ledgers(there: str) -> None:
    uuid = "GPU-00000000-0000-0000-0000-00000000000"
    grants = (Grant(f"{uuid}0", 100, 50, 100), Grant(f"{uuid}1", 100, 50, 100))
    tenant = Tenant("u", "ml", "trainer", ("main", "side"), 1, grants, True, "a1")
    slots = {0: (12, 345), 7: (13, 346)}
    share_ledger.write_record(Path(there), share_ledger.LedgerRecord("boot", tenant, (1, 2), 64, slots))


def reads_ledgers(there: str) -> list[Any]:
    (path,) = share_ledger.record_paths(Path(there))
    entry = share_ledger.read_record(path)
    grants = [[gpu.uuid, gpu.memory_bytes, gpu.request_percent, gpu.limit_percent] for gpu in entry.tenant.grants]
    who = [entry.tenant.pod_uid, entry.tenant.namespace, entry.tenant.pod, entry.tenant.containers, entry.tenant.share]
    pages = [entry.ledger, entry.slot_count, sorted(entry.slots.items())]
    return [entry.boot_id, who, entry.tenant.latency, entry.tenant.allocation, grants, *pages]


def writes_when_ledgers_were_lost(there: str) -> None:
    share_ledger.write_loss(Path(there) / "ledgers", "boot", 17)


def reads_when_ledgers_were_lost(there: str) -> Any:
    return share_ledger.read_loss(Path(there) / "ledgers", "boot")


def writes_peaks(there: str) -> None:
    tenant = Tenant("u", "ml", "trainer", ("main",), 0, (Grant("GPU-0", 100, 50, 100),))
    use = ShareUse(tenant, (77,), 1, (5,))
    made = Peaks(Path(there), uses=lambda: (use,), leases=lambda: (), pods=lambda: None)
    made.sample()
    made.sample()
    made.save()


def reads_peaks(there: str) -> list[Any]:
    peaks = Peaks(Path(there), uses=lambda: (), leases=lambda: (), pods=lambda: None).all
    return [[peak.pod_uid, peak.namespace, peak.pod, peak.containers, peak.gpu, peak.memory_bytes] for peak in peaks]


def writes_contexts(there: str) -> None:
    ContextCheckpoint(Path(there)).learn({"A100 550": (70, 60)})


def reads_contexts(there: str) -> int:
    return ContextCheckpoint(Path(there)).bytes_of("A100 550")


def writes_faults(there: str) -> None:
    FaultLog(Path(there)).write({"GPU-0": Fault("XID 79", None, 12.5, 79)})


def reads_faults(there: str) -> list[Any]:
    notes = FaultLog(Path(there)).read()
    return [[uuid, fault.reason, fault.until, fault.since, fault.number] for uuid, fault in notes.items()]


def writes_modes(there: str) -> None:
    shared = Assignment(Mode.TIME_SLICING, "nvidia.com/gpu.shared", 4, True, "short")
    state = mode_checkpoint.Checkpoint(ActiveConfig("a", "text"), {"GPU-0": shared, "GPU-1": None})
    mode_checkpoint.write(Path(there) / "book.json", state)


def reads_modes(there: str) -> list[Any]:
    state = mode_checkpoint.read(Path(there) / "book.json")
    assert state is not None
    assert state.current is not None
    gpus = {uuid: mode and [mode.mode, mode.resource, mode.replicas, mode.alone] for uuid, mode in state.gpus.items()}
    return [state.current.name, state.current.text, gpus]


# For each file, how an agent writes and reads it.
FILES = {
    "ledgers": (writes_ledgers, reads_ledgers),
    "when ledgers were lost": (writes_when_ledgers_were_lost, reads_when_ledgers_were_lost),
    "peaks": (writes_peaks, reads_peaks),
    "contexts": (writes_contexts, reads_contexts),
    "faults": (writes_faults, reads_faults),
    "what GPUs are used for": (writes_modes, reads_modes),
}
