"""Devices that an XID event affects, and XIDs that are ignored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.hardware import nvml_events
from deviceplugin.hardware.nvml_events import Filter, Watched, XidEvent, XidKind

DEVICES = {
    "GPU-a::0": Watched("GPU-a"),
    "GPU-a::1": Watched("GPU-a"),
    "MIG-1": Watched("GPU-b", 1, 0),
    "MIG-2": Watched("GPU-b", 1, 1),
    "MIG-3": Watched("GPU-b", 2, 0),
}


@pytest.mark.parametrize(
    ("event", "ids"),
    [
        (XidEvent(XidKind.XID, 79, "GPU-a"), {"GPU-a::0", "GPU-a::1"}),
        (XidEvent(XidKind.XID, 79, "GPU-b"), {"MIG-1", "MIG-2", "MIG-3"}),
        (XidEvent(XidKind.XID, 79, "GPU-b", 1, 0), {"MIG-1"}),
        (XidEvent(XidKind.XID, 79, "GPU-b", 1), {"MIG-1", "MIG-2"}),
        (XidEvent(XidKind.XID, 79, "GPU-b", 3, 0), set()),
        (XidEvent(XidKind.XID, 79, "GPU-z"), set()),
        (XidEvent(XidKind.XID, 79), set(DEVICES)),
        (XidEvent(XidKind.WAIT_ERROR), set(DEVICES)),
        (XidEvent(XidKind.XID, 13, "GPU-a"), set()),
        (XidEvent(XidKind.DOUBLE_BIT_ECC, gpu="GPU-a"), set()),
        (XidEvent(XidKind.TIMEOUT), set()),
    ],
)
def test_event_affects_every_replica_and_mig_device_it_names(event: XidEvent, ids: set[str]) -> None:
    assert set(nvml_events.affected(DEVICES, event, Filter())) == ids


@given(
    st.sampled_from(["", "all", "XIDs", "48", "79, 48", "all,7"]),
    st.sampled_from(["", "ALL", "48", "13,48"]),
    st.sampled_from([7, 13, 48, 79, 555]),
)
def test_enabled_xids_override_disabled_ones(disabled: str, enabled: str, number: int) -> None:
    xid_filter = nvml_events.filter_from({nvml_events.DISABLE: disabled, nvml_events.ENABLE: enabled})
    if enabled == "ALL" or str(number) in enabled.split(","):
        assert not xid_filter.ignores(number)
        assert not xid_filter.checks_nothing
    else:
        words = disabled.lower().replace(" ", "").split(",")
        assert xid_filter.ignores(number) == (
            number in nvml_events.APPLICATION_XIDS or bool({"all", "xids", str(number)} & set(words))
        )


def test_one_enabled_xid_is_watched_although_all_are_disabled() -> None:
    xid_filter = nvml_events.filter_from({nvml_events.DISABLE: "all", nvml_events.ENABLE: "48"})
    assert not xid_filter.checks_nothing
    assert (xid_filter.ignores(48), xid_filter.ignores(79)) == (False, True)
    assert nvml_events.filter_from({nvml_events.DISABLE: "all"}).checks_nothing


@pytest.mark.parametrize("text", ["", ",", "x", "-1", "1.5", "٣", "1 2"])
def test_ignores_items_that_are_not_numbers(text: str) -> None:
    assert nvml_events.parse_list(text) == ()


def test_unwatchable_gpu_has_a_problem_but_an_old_one_has_none() -> None:
    assert "ERROR_NOT_FOUND" in nvml_events.watch_problem(handle="ERROR_NOT_FOUND")
    assert "ERROR_UNKNOWN" in nvml_events.watch_problem(events="ERROR_UNKNOWN")
    assert "ERROR_UNKNOWN" in nvml_events.watch_problem(registering="ERROR_UNKNOWN")
    assert nvml_events.watch_problem(registering=nvml_events.NOT_SUPPORTED) == ""
