"""The unclaimed memory is never less than the unseen memory, for any charges and lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.audit.overhead import KnownHolding, unclaimed_bytes

ASKER = (1, 10)
AMOUNT = st.integers(0, 100)


@st.composite
def processes(draw: st.DrawFn) -> tuple[int, dict[tuple[int, int], KnownHolding], dict[int, int | None]]:
    """Draw the used memory of some processes, their known holdings, and NVML's list."""
    used, known, listed = 0, {}, {}
    for pid in range(1, draw(st.integers(1, 4)) + 1):
        certain, passing, imported, context = (draw(AMOUNT) for _ in range(4))
        latent = draw(AMOUNT)  # charged but not allocated
        used += certain + passing + context  # imported memory is counted where it is held unseen
        share = draw(st.sampled_from(["a", "b"])) if pid > 1 else "a"
        counted = draw(st.integers(0, context))
        known[pid, 10 * pid] = KnownHolding(share, certain + passing + latent, (certain, 0), counted)
        # NVML may count imported memory for the importer.
        listed[pid] = certain + passing + (imported if share == "a" else 0)
    return used, known, listed


@given(processes(), AMOUNT)
def test_result_includes_unseen_memory(
    made: tuple[int, dict[tuple[int, int], KnownHolding], dict[int, int | None]], unseen: int
) -> None:
    used, known, listed = made
    assert unclaimed_bytes(used + unseen, known, known, listed=listed, share="a", asker=ASKER) >= unseen


def test_result_is_exact_if_all_other_memory_is_certain() -> None:
    known = {ASKER: KnownHolding("a", 100, (70, 0), 0)}
    assert unclaimed_bytes(80, known, known, listed={1: 80}, share="a", asker=ASKER) == 10


def test_process_that_was_about_to_free_has_no_certain_memory() -> None:
    before, after = {ASKER: KnownHolding("a", 100, (70, 4), 0)}, {ASKER: KnownHolding("a", 100, (70, 5), 0)}
    assert unclaimed_bytes(80, before, after, listed={1: 80}, share="a", asker=ASKER) == 80


def test_memory_certain_only_afterwards_does_not_count() -> None:
    before, after = {ASKER: KnownHolding("a", 100, (30, 4), 0)}, {ASKER: KnownHolding("a", 100, (70, 4), 0)}
    assert unclaimed_bytes(80, before, after, listed={}, share="a", asker=ASKER) == 50


def test_askers_overhead_stays_in_the_result() -> None:
    known = {ASKER: KnownHolding("a", 100, (100, 0), 40), (2, 20): KnownHolding("a", 50, (50, 0), 30)}
    assert unclaimed_bytes(220, known, known, listed={1: 140, 2: 80}, share="a", asker=ASKER) == 40


def test_other_shares_count_up_to_list_and_charge() -> None:
    other = {ASKER: KnownHolding("a", 0, (0, 0), 0), (2, 20): KnownHolding("b", 60, (0, 0), 5)}
    for listed, left in ((50, 45), (90, 35), (None, 95)):
        assert unclaimed_bytes(100, other, other, listed={2: listed}, share="a", asker=ASKER) == left
