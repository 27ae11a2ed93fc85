"""The next release's agent reads the files of an agent, and the previous one's does after a rollback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deviceplugin.arbiter import share_ledger, share_ledgers
from deviceplugin.audit import overhead
from deviceplugin.hardware import gpu_health
from deviceplugin.host import kernel_process, records
from deviceplugin.modes import mode_checkpoint
from deviceplugin.report import share_peaks
from gpushare import contract
from tests.deviceplugin import agent_process
from tests.deviceplugin.test_agent_without_cluster import unreachable
from tests.releases.programs.agent_state import FILES, writes_ledgers
from tests.releases.release import BEFORE, THIS, Release

pytestmark = pytest.mark.slow

BOTH_WAYS = pytest.mark.parametrize(
    ("writer", "reader"), [(BEFORE, THIS), (THIS, BEFORE)], ids=["upgrade", "downgrade"]
)


@BOTH_WAYS
@pytest.mark.parametrize("file", FILES)
def test_each_release_reads_the_files_of_the_other(tmp_path: Path, file: str, writer: Release, reader: Release) -> None:
    write, read = FILES[file]
    writer.run(write, str(tmp_path))
    meant = writer.run(read, str(tmp_path))
    assert meant
    assert reader.run(read, str(tmp_path)) == meant


NOT_KNOWN = '{"version": 99, "of": "a newer agent"}'


def test_unreadable_files_are_set_aside_and_the_agent_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = (share_peaks.NAME, overhead.CONTEXTS_NAME, gpu_health.FAULTS_NAME, "book.json")
    for name in names:
        (tmp_path / name).write_text(NOT_KNOWN)
    assert share_peaks.Peaks(tmp_path, uses=tuple, leases=tuple, pods=lambda: None).all == ()
    assert overhead.ContextCheckpoint(tmp_path, until_learned_bytes=7).bytes_of("any") == 7
    assert gpu_health.FaultLog(tmp_path).read() == {}
    with pytest.raises(
        mode_checkpoint.CheckpointError, match=r"book\.json is invalid .* and is now book\.json\.unreadable: "
    ):
        mode_checkpoint.read(tmp_path / "book.json")
    said = [str(vars(entry).get("set_aside", "")) for entry in caplog.records]
    for name in names:
        aside = tmp_path / f"{name}{records.UNREADABLE}"
        assert aside.read_text() == NOT_KNOWN
        assert name == "book.json" or str(aside) in said
        assert not (tmp_path / name).exists()


async def test_a_ledger_with_an_unknown_page_layout_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    BEFORE.run(writes_ledgers, str(tmp_path))
    (path,) = share_ledger.record_paths(tmp_path)
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "layout": contract.PAGES_LAYOUT + 1, "boot_id": kernel_process.boot_id()}))
    share_ledgers.ShareLedgers(tmp_path).recover()
    (problem,) = [entry for entry in caplog.records if entry.message == "Dropped a ledger's record"]
    assert "its pages have layout 1, unknown to this agent" in str(vars(problem)["err"])
    assert share_ledger.record_paths(tmp_path) == []
    assert path.with_name(f"{path.name}{records.UNREADABLE}").exists()


def test_unknown_fields_of_a_newer_ledger_record_are_ignored(tmp_path: Path) -> None:
    BEFORE.run(writes_ledgers, str(tmp_path))
    (path,) = share_ledger.record_paths(tmp_path)
    meant, record = share_ledger.read_record(path), json.loads(path.read_text())
    record["tenant"]["newer"] = record["newer"] = 1
    record["tenant"]["grants"][0]["newer"] = [1]
    path.write_text(json.dumps(record))
    assert share_ledger.read_record(path) == meant


SINCE_THIS_RELEASE = "gpushare_share_beyond_limit_compute_ratio"  # a metric


async def test_agents_of_both_releases_replace_each_other_on_a_node(short_path: Path, gpus: Path) -> None:
    libraries = []
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
            libraries.append(served["library"])
            _, metrics = await agent.get("/metrics")
            assert (SINCE_THIS_RELEASE in metrics) is (release is THIS)
            assert await agent.stop() == 0
            assert not agent.other
            aside = [line for line in agent.lines if "set_aside" in line or "is invalid" in json.dumps(line)]
            assert aside == []
            assert not [line for line in agent.lines if line["v"] == "error"], agent.lines
    assert libraries == libraries[:2] * 2
    assert {path.name for path in (short_path / "root" / "lib").iterdir()} == set(libraries)
