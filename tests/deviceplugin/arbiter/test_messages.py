"""Messages between agent and arbiter survive encoding and decoding."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.arbiter import messages
from deviceplugin.arbiter.scheduling.leases import LeaseUsage


@pytest.mark.slow
@given(st.one_of(*map(st.from_type, messages.KINDS.values())))
def test_every_message_survives_encoding(message: messages.Message) -> None:
    # compare text, because NaN does not equal itself
    assert repr(messages.read(messages.write(message))) == repr(message)


def test_malformed_messages_are_refused() -> None:
    for data in (b'["Nothing",{}]', b'["NoEntry",{}]', b'["NoEntry",{"allocation":1}]', b"[]", b"{"):
        with pytest.raises(ValueError):
            messages.read(data)


def test_a_lease_report_has_every_field_of_lease_usage() -> None:
    names = {field.name for field in dataclasses.fields(messages.LeaseReport)}
    assert names - {"share"} == {field.name for field in dataclasses.fields(LeaseUsage)} - {"tenant"}
