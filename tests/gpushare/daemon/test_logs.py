from __future__ import annotations

import io
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon import lifecycle


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_the_time_is_rfc_3339_in_utc_to_the_millisecond() -> None:
    record = logging.makeLogRecord({"created": 1795788571.156619, "msg": "x"})
    assert json.loads(lifecycle.JsonLines("agent").format(record))["ts"] == "2026-11-27T14:09:31.156Z"


def test_a_line_has_the_keys_of_kubernetes_components_and_extra_fields(stream: io.StringIO) -> None:
    lifecycle.configure_logs("info", "webhook", stream=stream)
    pod = {"namespace": "default", "name": "trainer"}
    logging.getLogger("webhook.server").info("Placed a pod", extra={"pod": pod, "gpus": ["GPU-1"]})
    (line,) = lines(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts"))
    assert line == {
        "v": "info",
        "msg": "Placed a pod",
        "component": "webhook",
        "logger": "webhook.server",
        "pod": pod,
        "gpus": ["GPU-1"],
    }


def test_an_exception_and_its_stack_are_in_the_same_line(stream: io.StringIO) -> None:
    lifecycle.configure_logs("info", "agent", stream=stream)
    try:
        {}["GPU-9"]
    except KeyError:
        logging.getLogger("agent").exception("Could not read the GPUs")
    (line,) = lines(stream)
    assert (line["v"], line["err"]) == ("error", "KeyError: 'GPU-9'")
    assert "test_logs.py" in line["stack"]


def test_records_below_the_level_are_not_written(stream: io.StringIO) -> None:
    lifecycle.configure_logs("warning", "agent", stream=stream)
    logging.getLogger("agent").info("unwanted")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    (line,) = lines(stream)
    assert "old" in line["msg"]


def test_an_unknown_level_is_rejected_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="'loud' does not exist; use one of debug, info, warning, error"):
        lifecycle.configure_logs("loud", "agent")


def test_configuring_twice_does_not_duplicate_lines(stream: io.StringIO) -> None:
    for _ in range(2):
        lifecycle.configure_logs("info", "agent", stream=stream)
    logging.getLogger("agent").info("once")
    assert len(lines(stream)) == 1


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.just(object())),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.one_of(st.text(), st.tuples(st.text())), inner)),
    max_leaves=8,
)
names = st.one_of(st.text(min_size=1), st.sampled_from(["ts", "v", "msg", "err", "component", "logger", "stack"]))


@pytest.mark.slow
@given(message=st.text(), extra=st.dictionaries(names, values, max_size=4))
def test_any_record_is_one_json_line_with_its_standard_keys(message: str, extra: dict[str, Any]) -> None:
    record = logging.LogRecord("agent", logging.INFO, "", 0, message, None, None)
    record.__dict__.update({key: value for key, value in extra.items() if key not in record.__dict__})
    line = lifecycle.JsonLines("agent").format(record)
    assert "\n" not in line
    decoded = json.loads(line)
    assert (decoded["msg"], decoded["v"], decoded["component"]) == (message, "info", "agent")


def test_a_value_that_contains_itself_is_logged() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    record = logging.LogRecord("agent", logging.INFO, "", 0, "around", None, None)
    record.__dict__["cycle"] = cycle
    assert json.loads(lifecycle.JsonLines("agent").format(record))["msg"] == "around"


def test_logs_go_to_stderr_by_default(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    lifecycle.configure_logs("info", "agent")
    logging.getLogger("agent").info("here")
    assert lines(stream)[0]["msg"] == "here"


def test_a_text_line_is_printable_and_has_the_extra_fields(stream: io.StringIO) -> None:
    lifecycle.configure_logs("info", "agent", stream=stream)
    evil = "\x1b[2J\x7f\x85\x9b\u202e\u2028\u2066ü"
    logging.getLogger("agent").info(evil, extra={"model": evil, "nan": float("nan")})
    logging.getLogger("agent").info(evil, extra={"model": evil})
    assert all(line.isprintable() for line in stream.getvalue().split("\n"))
    assert [(line["msg"], line["model"]) for line in lines(stream)] == [(evil, evil)] * 2
    assert "ü" in stream.getvalue()
