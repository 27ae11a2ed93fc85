"""Files that the last agent left on disk, read by the next one; the first line names the file."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from deviceplugin.arbiter import pages, share_ledger, tenant
from deviceplugin.audit import overhead
from deviceplugin.hardware import gpu_health
from deviceplugin.host import library, records
from deviceplugin.injection import runtime_inspection
from deviceplugin.modes import mode_checkpoint
from deviceplugin.report import share_peaks
from gpushare import contract

_DIRECTORY = Path(tempfile.mkdtemp())
_HOST = Path(tempfile.mkdtemp())
_CONTAINERD = _HOST / "etc" / "containerd" / "config.toml"
_CONTAINERD.parent.mkdir(parents=True)


class _Figures:
    """Of peaks."""

    def __init__(self, peaks: share_peaks.Peaks) -> None:
        self.collect = lambda: share_peaks.metrics(peaks.all, node_name="gpu-1")


def _peaks(path: Path) -> None:
    peaks = share_peaks.Peaks(path.parent, uses=list, leases=list, pods=lambda: None)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(peaks))
    generate_latest(registry)
    peaks.save()


def _record(path: Path) -> None:
    try:
        record = share_ledger.read_record(path)
    except share_ledger.RecordError:
        return
    assert records.read(tenant.Tenant, records.to_json(record.tenant)) == record.tenant
    pages.LimitsPage(record.tenant.grants, slot_count=record.slot_count).close()
    assert all(0 <= slot < contract.LEDGER_SLOTS for slot in (*record.slots, max(record.slot_count - 1, 0)))


def _faults(path: Path) -> None:
    fault_log = gpu_health.FaultLog(path.parent, proc=path.parent)
    fault_log.write(fault_log.read())


def _contexts(path: Path) -> None:
    checkpoint = overhead.ContextCheckpoint(path.parent)
    assert checkpoint.bytes_of("A100/550") >= 0
    checkpoint.learn({"A100/550": (1, 2)})


def _lost(path: Path) -> None:
    ticks = share_ledger.read_loss(path.with_suffix(""), "boot")
    assert ticks is None or ticks >= 0


def _libraries(path: Path) -> None:
    kept = library.read_record(path)
    assert all(isinstance(uid, str) for uid in kept.seen)


def _book(path: Path) -> None:
    try:
        checkpoint = mode_checkpoint.read(path)
    except mode_checkpoint.CheckpointError:
        return
    if checkpoint is not None:
        mode_checkpoint.write(path, checkpoint)
        assert mode_checkpoint.read(path) == checkpoint


def _containerd(path: Path) -> None:
    text = path.read_text(errors="replace")
    file = runtime_inspection.read_containerd_file(text, runtime_inspection.ContainerdConfig())
    assert all(name.startswith("/") for name in file.imports)
    assert len(runtime_inspection.config_locations(text)) <= 5
    _CONTAINERD.write_text(text)
    runtime_inspection.containerd_configuration(_HOST, "")


READERS: Mapping[str, Callable[[Path], None]] = {
    share_peaks.NAME: _peaks,
    "record.json": _record,
    gpu_health.FAULTS_NAME: _faults,
    overhead.CONTEXTS_NAME: _contexts,
    "records.lost": _lost,
    "libraries.json": _libraries,
    "book.json": _book,
    "config.toml": _containerd,
}


def run(data: bytes) -> None:
    logging.disable()
    name, _, body = data.partition(b"\n")
    reader = READERS.get(name.decode("ascii", "replace"))
    if reader is None:
        return
    path = _DIRECTORY / name.decode()
    path.write_bytes(body)
    try:
        reader(path)
    finally:
        for file in _DIRECTORY.iterdir():
            file.unlink()
