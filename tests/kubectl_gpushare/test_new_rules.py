"""`fit` and `why` use a new policy and a new filter, and describe them in their words."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import contract, policies
from gpushare.placement import filters
from gpushare.placement.filters import FilterInput, GpuFilter, Verdict
from gpushare.policies import Option, Policy
from tests.kubectl_gpushare.conftest import Plugin


def no_a100(ask: FilterInput) -> Verdict:
    return (f"is GPU {ask.gpu.model}", 4.0) if "A100" in ask.gpu.model else None


def least_memory(option: Option) -> policies.Number:
    return option.after.memory


def test_new_filter_is_counted_in_refusals(monkeypatch: pytest.MonkeyPatch, plugin: Plugin, saved: Path) -> None:
    monkeypatch.setitem(filters.RULES, "one-more", GpuFilter(no_a100, "ruled out by one more"))
    ended = plugin("fit", "--request", "0.1", "--model", "*A100*", "--from", saved)
    assert ended.code == 2, ended.err
    assert "ruled out by one more" in " ".join(ended.out.split())


def test_why_describes_a_new_policy(monkeypatch: pytest.MonkeyPatch, plugin: Plugin, saved: Path) -> None:
    monkeypatch.setitem(policies.POLICIES, "one-more", Policy(least_memory, "that is tried"))
    assert plugin("fit", "--request", "0.1", "--memory", "1Gi", "--policy", "one-more", "--from", saved).code == 0
    text, key = saved.read_text(), f'"{contract.REQUEST}":'
    saved.write_text(text.replace(key, f'"{contract.POLICY}": "one-more", {key}'))
    ended = plugin("why", "ml/trainer", "--from", saved)
    assert ended.code == 0, ended.err
    assert "by the policy one-more, of the GPUs that fit, that is tried" in " ".join(ended.out.split())
