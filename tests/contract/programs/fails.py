"""Test file of a small project."""


def test_fails() -> None:
    raise AssertionError("always")
