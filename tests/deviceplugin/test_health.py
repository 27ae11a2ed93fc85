"""When a GPU is not to be trusted, and when it is again."""

from __future__ import annotations

import pytest

from deviceplugin import health

GPU = "GPU-1"


@pytest.mark.parametrize("number", sorted(health.APPLICATION_XIDS))
def test_what_a_program_did_wrong_says_nothing_about_the_gpu(number: int) -> None:
    assert health.after_xid({}, uuid=GPU, number=number, now=0) == {}


def test_another_xid_makes_it_unhealthy_until_it_was_quiet_for_a_while() -> None:
    faults = health.after_xid({}, uuid=GPU, number=94, now=1000)
    assert faults[GPU].reason == "XID 94 happened: it is unhealthy until 300 s without another"
    assert GPU in health.after_look(faults, returned=[], now=1299)
    assert GPU not in health.after_look(faults, returned=[], now=1300)


def test_each_further_one_begins_the_wait_anew() -> None:
    faults = health.after_xid({}, uuid=GPU, number=94, now=1000)
    faults = health.after_xid(faults, uuid=GPU, number=94, now=1200)
    assert GPU in health.after_look(faults, returned=[], now=1499)


@pytest.mark.parametrize("number", sorted(health.RESET_XIDS))
def test_what_only_a_reset_cures_stays_until_the_gpu_was_away(number: int) -> None:
    faults = health.after_xid({}, uuid=GPU, number=number, now=0)
    assert faults[GPU].reason == f"XID {number} happened: the GPU has to be reset"
    faults = health.after_look(faults, returned=["GPU-2"], now=1e9)
    assert GPU in faults
    assert health.after_look(faults, returned=[GPU], now=1e9) == {}


def test_a_lighter_fault_does_not_shorten_a_heavier_one() -> None:
    faults = health.after_xid({}, uuid=GPU, number=48, now=0)
    assert health.after_xid(faults, uuid=GPU, number=94, now=1) == faults


def test_one_gpus_fault_is_no_others() -> None:
    faults = health.after_xid({}, uuid=GPU, number=48, now=0)
    assert set(health.after_xid(faults, uuid="GPU-2", number=94, now=0)) == {GPU, "GPU-2"}


def test_no_xid_is_in_two_tables() -> None:
    assert not health.APPLICATION_XIDS & health.RESET_XIDS
