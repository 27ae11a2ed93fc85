"""Test file of a small project."""


def test_passes() -> None:
    pass
