"""XIDs and events."""

from __future__ import annotations

from typing import Any

from deviceplugin.hardware import nvml_events
from tests.conformance.runner import Case, Facets


def xid_filter(case: Case) -> Any:
    event_filter = nvml_events.filter_from({key: value for key, value in case.input.items() if value is not None})
    numbers = case.expect.get("ignored") or {}
    return Facets(
        all_disabled=event_filter.all_disabled,
        checks_nothing=event_filter.checks_nothing,
        ignored={number: event_filter.ignores(int(number)) for number in numbers},
    )


def handle_nvml_event(case: Case) -> Any:
    fields = case.input["event"]
    devices = {
        identity: nvml_events.Watched(
            gpu=device["gpu"],
            gpu_instance=device.get("gi"),
            compute_instance=device.get("ci"),
        )
        for identity, device in case.input["devices"].items()
    }
    environment = case.input.get("env") or {}
    unhealthy = {identity for identity, device in case.input["devices"].items() if _problem(device)}
    if fields["type"] in list(nvml_events.XidKind):
        event = nvml_events.XidEvent(
            nvml_events.XidKind(fields["type"]),
            number=fields.get("xid", 0),
            gpu=fields.get("gpu"),
            gpu_instance=fields.get("gi", nvml_events.WHOLE_GPU),
            compute_instance=fields.get("ci", nvml_events.WHOLE_GPU),
        )
        unhealthy |= set(nvml_events.affected(devices, event, nvml_events.filter_from(environment)))
    return {"unhealthy": sorted(unhealthy)}


def _problem(device: Any) -> str:
    return nvml_events.watch_problem(
        handle=device.get("handle") or device.get("placement") or "",
        events=device.get("events", ""),
        registering=device.get("register", ""),
    )


OPERATIONS = {
    "parse_xid_list": lambda case: nvml_events.parse_list(case.input),
    "xid_filter": xid_filter,
    "handle_nvml_event": handle_nvml_event,
}
