"""What the last agent left on disk, as the next one finds it; the first line says which file it is."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from deviceplugin.arbiter import ledger_record, pages, recovery_window, tenant
from deviceplugin.audit import contexts
from deviceplugin.disk import old_libraries, records
from deviceplugin.hardware import faults
from deviceplugin.injection import containerd_config
from deviceplugin.live import mode_checkpoint
from deviceplugin.report import share_peaks
from gpushare import contract

_DIRECTORY = Path(tempfile.mkdtemp(prefix="gpushare-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))


class _Figures:
    """Of peaks."""

    def __init__(self, found: share_peaks.Peaks) -> None:
        self.collect = lambda: share_peaks.figures(found.all, node_name="gpu-1")


def _peaks(path: Path) -> None:
    found = share_peaks.Peaks(path.parent, uses=list, leases=list, pods=lambda: None)
    for one in found.all:
        assert one.after(5, 1.0).with_compute(0.5).memory_bytes >= 5
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(found))  # type: ignore[arg-type]
    generate_latest(registry)
    found.keep()


def _record(path: Path) -> None:
    try:
        found = ledger_record.read(path)
    except ledger_record.RecordError:
        return
    assert records.read(tenant.Tenant, records.write(found.tenant)) == found.tenant
    pages.LimitsPage(found.tenant.grants, slot_count=found.slot_count).close()
    assert all(0 <= slot < contract.LEDGER_SLOTS for slot in (*found.slots, max(found.slot_count - 1, 0)))


def _faults(path: Path) -> None:
    notebook = faults.Notebook(path.parent, proc=path.parent)
    notebook.write(notebook.read())


def _contexts(path: Path) -> None:
    found = contexts.ContextCheckpoint(path.parent)
    assert found.bytes_of("A100/550") >= 0
    found.learn({"A100/550": (1, 2)})


def _lost(path: Path) -> None:
    ticks = recovery_window.read(path.with_suffix(""), "boot")
    assert ticks is None or ticks >= 0


def _libraries(path: Path) -> None:
    kept = old_libraries.read(path)
    assert all(isinstance(one, str) for one in kept.seen)


def _book(path: Path) -> None:
    try:
        found = mode_checkpoint.read(path)
    except mode_checkpoint.CheckpointError:
        return
    if found is not None:
        mode_checkpoint.write(path, found)
        assert mode_checkpoint.read(path) == found


def _containerd(path: Path) -> None:
    containerd_config.read([path.read_text(errors="replace")])


READERS: Mapping[str, Callable[[Path], None]] = {
    share_peaks.NAME: _peaks,
    "record.json": _record,
    faults.NAME: _faults,
    contexts.NAME: _contexts,
    f"records{recovery_window.SUFFIX}": _lost,
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
        for one in _DIRECTORY.iterdir():
            one.unlink()
