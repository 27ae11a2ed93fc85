"""What an agent leaves on disk is read by the next release's, and by the last one's when it comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.arbiter import kernel_process, ledger_record, share_ledgers
from deviceplugin.audit import contexts
from deviceplugin.disk import whole_file
from deviceplugin.hardware import faults
from deviceplugin.live import mode_checkpoint
from deviceplugin.report import share_peaks
from gpushare import contract
from tests.deviceplugin import agent_process
from tests.deviceplugin.test_agent_without_cluster import unreachable
from tests.releases.release import BEFORE, THIS, Release

BOTH_WAYS = pytest.mark.parametrize(
    ("writer", "reader"), [(BEFORE, THIS), (THIS, BEFORE)], ids=["upgrade", "downgrade"]
)

# Of each file what an agent does to write it, and to read it, in the directory `there`.
FILES: Mapping[str, tuple[str, str]] = {
    "ledgers": (
        """
from deviceplugin.arbiter import ledger_record
from deviceplugin.arbiter.tenant import Grant, Tenant
grants = (Grant("GPU-00000000-0000-0000-0000-000000000000", 100, 50, 100), Grant("GPU-00000000-0000-0000-0000-000000000001", 100, 50, 100))
tenant = Tenant("u", "ml", "trainer", ("main", "side"), 1, grants, True, "a1")
ledger_record.write(there, ledger_record.LedgerRecord("boot", tenant, (1, 2), 64, {0: (12, 345), 7: (13, 346)}))
""",
        """
from deviceplugin.arbiter import ledger_record
(path,) = ledger_record.all_in(there)
one = ledger_record.read(path)
grants = [[each.uuid, each.memory_bytes, each.request_percent, each.limit_percent] for each in one.tenant.grants]
who = [one.tenant.pod_uid, one.tenant.namespace, one.tenant.pod, one.tenant.containers, one.tenant.share]
answer = [one.boot_id, who, one.tenant.latency, one.tenant.allocation, grants, one.ledger, one.slot_count]
answer.append(sorted(one.slots.items()))
""",
    ),
    "when ledgers were lost": (
        'from deviceplugin.arbiter import recovery_window\nrecovery_window.write(there / "ledgers", "boot", 17)',
        'from deviceplugin.arbiter import recovery_window\nanswer = recovery_window.read(there / "ledgers", "boot")',
    ),
    "peaks": (
        """
from deviceplugin.arbiter.share_ledgers import ShareUse
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.report.share_peaks import Peaks
tenant = Tenant("u", "ml", "trainer", ("main",), 0, (Grant("GPU-0", 100, 50, 100),))
made = Peaks(there, uses=lambda: (ShareUse(tenant, (77,), 1, (5,)),), leases=lambda: (), pods=lambda: None)
made.look()
made.look()
made.keep()
""",
        """
from deviceplugin.report.share_peaks import Peaks
found = Peaks(there, uses=lambda: (), leases=lambda: (), pods=lambda: None).all
answer = [[one.pod_uid, one.namespace, one.pod, one.containers, one.gpu, one.memory_bytes] for one in found]
""",
    ),
    "contexts": (
        'from deviceplugin.audit.contexts import ContextCheckpoint\nContextCheckpoint(there).learn({"A100 550": (70, 60)})',
        'from deviceplugin.audit.contexts import ContextCheckpoint\nanswer = ContextCheckpoint(there).bytes_of("A100 550")',
    ),
    "faults": (
        """
from deviceplugin.hardware import (faults, gpu_health)
faults.Notebook(there).write({"GPU-0": gpu_health.Fault("XID 79", None, 12.5, 79)})
""",
        """
from deviceplugin.hardware import faults
found = faults.Notebook(there).read()
answer = [[uuid, one.reason, one.until, one.since, one.number] for uuid, one in found.items()]
""",
    ),
    "what GPUs are used for": (
        """
from deviceplugin.live import mode_checkpoint
from gpushare.config.config_choice import ActiveConfig
from gpushare.gpu import Mode
from gpushare.modes.assignment import Assignment
shared = Assignment(Mode.TIME_SLICING, "nvidia.com/gpu.shared", 4, True, "short")
mode_checkpoint.write(there / "book.json", mode_checkpoint.Checkpoint(ActiveConfig("a", "text"), {"GPU-0": shared, "GPU-1": None}))
""",
        """
from deviceplugin.live import mode_checkpoint
found = mode_checkpoint.read(there / "book.json")
gpus = {uuid: one and [one.mode, one.resource, one.replicas, one.alone] for uuid, one in found.gpus.items()}
answer = [found.current.name, found.current.text, gpus]
""",
    ),
}


def does(release: Release, code: str, there: Path) -> Any:
    return release.run(f"import pathlib\nthere = pathlib.Path(given)\nanswer = None\n{code}", str(there))


@BOTH_WAYS
@pytest.mark.parametrize("file", FILES)
def test_what_one_release_has_written_the_other_reads_as_it_was_meant(
    tmp_path: Path, file: str, writer: Release, reader: Release
) -> None:
    write, read = FILES[file]
    does(writer, write, tmp_path)
    meant = does(writer, read, tmp_path)
    assert meant
    assert does(reader, read, tmp_path) == meant


NOT_KNOWN = '{"version": 99, "of": "a newer agent"}'


def test_what_cannot_be_read_is_set_aside_with_a_sentence_and_the_agent_starts_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = (share_peaks.NAME, contexts.NAME, faults.NAME, "book.json")
    for name in names:
        (tmp_path / name).write_text(NOT_KNOWN)
    assert share_peaks.Peaks(tmp_path, uses=tuple, leases=tuple, pods=lambda: None).all == ()
    assert contexts.ContextCheckpoint(tmp_path, until_learned_bytes=7).bytes_of("any") == 7
    assert faults.Notebook(tmp_path).read() == {}
    with pytest.raises(
        mode_checkpoint.CheckpointError, match=r"book\.json is invalid .* and is now book\.json\.unreadable: "
    ):
        mode_checkpoint.read(tmp_path / "book.json")
    said = [str(vars(entry).get("set_aside", "")) for entry in caplog.records]
    for name in names:
        aside = tmp_path / f"{name}{whole_file.UNREADABLE}"
        assert aside.read_text() == NOT_KNOWN
        assert name == "book.json" or str(aside) in said
        assert not (tmp_path / name).exists()


async def test_a_ledger_with_pages_of_a_layout_that_is_not_known_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    does(BEFORE, FILES["ledgers"][0], tmp_path)
    (path,) = ledger_record.all_in(tmp_path)
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "layout": contract.PAGES_LAYOUT + 1, "boot_id": kernel_process.boot_id()}))
    share_ledgers.ShareLedgers(tmp_path).inherit()
    (problem,) = [entry for entry in caplog.records if entry.message == "Dropped a ledger's record"]
    assert "its pages have layout 1, unknown to this agent" in str(vars(problem)["err"])
    assert ledger_record.all_in(tmp_path) == []
    assert path.with_name(f"{path.name}{whole_file.UNREADABLE}").exists()


def test_fields_of_a_ledgers_record_that_only_a_newer_agent_knows_are_passed_over(tmp_path: Path) -> None:
    does(BEFORE, FILES["ledgers"][0], tmp_path)
    (path,) = ledger_record.all_in(tmp_path)
    meant, found = ledger_record.read(path), json.loads(path.read_text())
    found["tenant"]["newer"] = found["newer"] = 1
    found["tenant"]["grants"][0]["newer"] = [1]
    path.write_text(json.dumps(found))
    assert ledger_record.read(path) == meant


@pytest.mark.slow
async def test_whole_agents_follow_each_other_on_one_node(short_path: Path, gpus: Path) -> None:
    for release in (BEFORE, THIS, BEFORE, THIS):
        async with agent_process.running(
            "node-a",
            short_path,
            kubeconfig=unreachable(short_path),
            gpus=gpus,
            library=release.library,
            program=("-P", "-m", "deviceplugin"),
            environment=release.environment,
        ) as agent:
            assert (await agent.get("/healthz"))[0] == 200
            served = next(line for line in agent.lines if line["msg"] == "Serving")
            assert ("library" in served) is (release is THIS)
            assert await agent.stop() == 0
            assert not agent.other
            aside = [line for line in agent.lines if "set_aside" in line or "is invalid" in json.dumps(line)]
            assert aside == []
            assert not [line for line in agent.lines if line["v"] == "error"], agent.lines
    assert len(list((short_path / "root" / "lib").iterdir())) == 2
