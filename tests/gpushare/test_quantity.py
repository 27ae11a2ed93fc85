from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import errors, quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1000", 1000),
        ("8Gi", 8 * 2**30),
        ("1.5Gi", 3 * 2**29),
        (".5Ki", 512),
        ("1.", 1),
        ("1k", 1000),
        ("2E", 2 * 10**18),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12e-1", 2),
        ("500m", 1),  # rounded up, as Kubernetes does
        ("1n", 1),
    ],
)
def test_memory_quantities_are_parsed_like_kubernetes(text: str, value: int) -> None:
    assert quantity.parse_bytes(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "8GiB",
        "8 Gi",
        "-1",
        "+1",
        "1e",
        "1e999",
        "NaN",
        "inf",
        "0x10",
        "1,5",
        "Gi",
        "१",
        "1" * 50,
        "16Ei",
        "1_000",
        "8gi",
        "1Gi\n",
    ],
)
def test_an_invalid_quantity_is_rejected(text: str) -> None:
    with pytest.raises(errors.QuantityError):
        quantity.parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "percent"),
    [
        ("0", 0),
        ("0.5", 50),
        ("50%", 50),
        ("500m", 50),
        ("1", 100),
        ("1.0", 100),
        ("100%", 100),
        ("0.01", 1),
        (".25", 25),
        ("0.290", 29),
    ],
)
def test_a_gpu_fraction_has_three_notations(text: str, percent: int) -> None:
    assert quantity.parse_compute(text) == percent


@pytest.mark.parametrize(
    ("text", "part_of_sentence"),
    [
        ("1.5", "more than one GPU"),
        ("101%", "more than one GPU"),
        ("1001m", "more than one GPU"),
        ("0.005", "finer than 0.01"),
        ("5m", "finer than 0.01"),
        ("-0.5", "not a part of a GPU"),
        ("half", "not a part of a GPU"),
        ("NaN", "not a part of a GPU"),
        ("1e-1", "not a part of a GPU"),
        ("٠.٥", "not a part of a GPU"),
        ("", "not a part of a GPU"),
    ],
)
def test_an_invalid_gpu_fraction_is_rejected_with_the_reason(text: str, part_of_sentence: str) -> None:
    with pytest.raises(errors.QuantityError, match=part_of_sentence):
        quantity.parse_compute(text)


@given(st.integers(0, 100))
def test_the_three_notations_of_a_fraction_agree(percent: int) -> None:
    texts = (quantity.format_compute(percent), f"{percent}%", f"{percent * 10}m")
    assert {quantity.parse_compute(text) for text in texts} == {percent}


@given(st.text(max_size=40))
def test_any_text_is_a_quantity_or_an_error(text: str) -> None:
    for parse in (quantity.parse, quantity.parse_bytes, quantity.parse_compute):
        try:
            assert parse(text) >= Fraction(0)
        except errors.QuantityError as error:
            assert "\n" not in str(error)


@pytest.mark.slow
@given(st.integers(0, 2**62))
def test_formatted_bytes_are_within_one_percent(count: int) -> None:
    assert abs(quantity.parse_bytes(quantity.format_bytes(count)) - count) <= count / 100


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1000, "1000"),
        (1024, "1Ki"),
        (8 * 2**30, "8Gi"),
        (3 * 2**29, "1.5Gi"),
        (1023 * 2**20 + 1, "1023Mi"),
        (1_048_051_712, "1000Mi"),
    ],
)
def test_bytes_are_formatted_briefly(count: int, text: str) -> None:
    assert quantity.format_bytes(count) == text
