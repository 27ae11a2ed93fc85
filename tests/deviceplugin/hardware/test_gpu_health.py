"""When GPUs become unhealthy and healthy again, and that a restart of the agent does not cure them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deviceplugin.hardware import gpu_health, nvml_events

GPU = "GPU-1"


def after(
    number: int, *, faults: gpu_health.Faults | None = None, uuid: str = GPU, now: float = 0.0
) -> gpu_health.Faults:
    return gpu_health.after_xid(faults or {}, uuids=[uuid], number=number, now=now)


def test_other_xids_last_until_the_gpu_was_quiet() -> None:
    faults = after(94, now=1000)
    assert faults[GPU].reason == "XID 94 happened: it is unhealthy until 300 s pass without another"
    assert GPU in gpu_health.after_poll(faults, answering=[GPU], now=1299)
    assert GPU not in gpu_health.after_poll(faults, answering=[GPU], now=1300)


def test_another_xid_restarts_the_wait() -> None:
    faults = after(94, faults=after(94, now=1000), now=1200)
    assert GPU in gpu_health.after_poll(faults, answering=[GPU], now=1499)


@pytest.mark.parametrize("number", sorted(gpu_health.RESET_XIDS))
def test_reset_faults_last_until_the_gpu_disappeared(number: int) -> None:
    faults = after(number)
    assert faults[GPU].reason == f"XID {number} happened: the GPU has to be reset"
    if number != gpu_health.OFF_THE_BUS_XID:
        faults = gpu_health.after_poll(faults, answering=[GPU], now=1e9)
        assert GPU in faults
    faults = gpu_health.after_poll(faults, answering=["GPU-2"], now=1e9)
    assert GPU in faults
    assert gpu_health.after_poll(faults, answering=[GPU], now=1e9) == {}


def test_mig_device_recovers_with_its_gpu() -> None:
    faults = gpu_health.after_xid({}, uuids=["MIG-1"], number=95, now=1000, gpu=GPU)
    assert gpu_health.after_poll(faults, answering=[GPU], now=1300, recovered=[GPU]) == {}
    away = gpu_health.after_poll(faults, answering=[], now=1001)
    assert "MIG-1" in away
    assert gpu_health.after_poll(away, answering=[GPU], now=1006) == {}


def test_fallen_off_the_bus_counts_as_disappeared() -> None:
    faults = after(gpu_health.OFF_THE_BUS_XID, now=1000)
    assert GPU in gpu_health.after_poll(faults, answering=[GPU], now=1004)  # it may be about to disappear
    assert gpu_health.after_poll(faults, answering=[GPU], now=1005) == {}


def test_recovered_report_counts_after_a_while() -> None:
    faults = after(48, now=1000)
    assert GPU in gpu_health.after_poll(faults, answering=[GPU], now=1299, recovered=[GPU])
    assert gpu_health.after_poll(faults, answering=[GPU], now=1300, recovered=[GPU]) == {}


@pytest.mark.parametrize("number", [48, 94])
def test_fault_lasts_while_the_driver_wants_a_reset(number: int) -> None:
    faults = after(number, now=1000)
    assert gpu_health.after_poll(faults, answering=[GPU], now=1e9, needing=[GPU]) == faults
    of_mig = gpu_health.after_xid({}, uuids=["MIG-1"], number=number, now=1000, gpu=GPU)
    assert gpu_health.after_poll(of_mig, answering=[GPU], now=1e9, needing=[GPU]) == of_mig


@pytest.mark.parametrize("number", [46, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 149, 151, 155, 156, 158])
def test_xids_with_a_reset_action_need_a_reset(number: int) -> None:
    assert after(number)[GPU].until is None


def test_lighter_fault_does_not_shorten_a_heavier_one() -> None:
    faults = after(48)
    assert after(94, faults=faults, now=1) == faults


def test_faults_are_per_gpu() -> None:
    assert set(after(94, faults=after(48), uuid="GPU-2")) == {GPU, "GPU-2"}


def test_no_xid_is_in_both_tables() -> None:
    assert not nvml_events.APPLICATION_XIDS & gpu_health.RESET_XIDS


def test_next_agent_reads_the_faults_of_this_boot(tmp_path: Path) -> None:
    boot = tmp_path / "proc" / "sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("one\n")
    known = gpu_health.after_poll(after(94, faults=after(48, uuid="GPU-2", now=5.0), now=7.0), answering=[GPU], now=8.0)
    assert known["GPU-2"].away
    gpu_health.FaultLog(tmp_path / "state", proc=tmp_path / "proc").write(known)
    assert gpu_health.FaultLog(tmp_path / "state", proc=tmp_path / "proc").read() == known
    boot.write_text("two\n")  # a reboot resets the GPUs
    assert gpu_health.FaultLog(tmp_path / "state", proc=tmp_path / "proc").read() == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": "", "faults": {"GPU-1": {}}}'])
def test_invalid_fault_log_counts_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / gpu_health.FAULTS_NAME).write_text(text)
    assert gpu_health.FaultLog(tmp_path, proc=tmp_path).read() == {}
