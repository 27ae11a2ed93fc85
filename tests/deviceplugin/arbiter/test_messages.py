"""What agent and arbiter tell each other comes back from bytes as it was."""

from __future__ import annotations

import dataclasses
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.arbiter import messages
from deviceplugin.arbiter.scheduling.gpu_leases import LeaseUsage

KINDS = typing.get_args(messages.Message)


@pytest.mark.slow
@given(st.one_of(*map(st.from_type, KINDS)))
def test_every_message_comes_back(message: messages.Message) -> None:
    assert repr(messages.read(messages.write(message))) == repr(message)  # as text: of numbers, NaN is not itself


def test_what_is_no_message_is_refused() -> None:
    for data in (b'["Nothing",{}]', b'["NoEntry",{}]', b'["NoEntry",{"allocation":1}]', b"[]", b"{"):
        with pytest.raises(ValueError):
            messages.read(data)


def test_a_turn_has_all_that_is_told_of_a_share_on_a_gpu() -> None:
    names = {field.name for field in dataclasses.fields(messages.LeaseReport)}
    assert names - {"share"} == {field.name for field in dataclasses.fields(LeaseUsage)} - {"tenant"}
