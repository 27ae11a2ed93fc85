"""Test file of a small project: it passes from the second run on."""

import pathlib


def test_fails_once() -> None:
    ran_before = pathlib.Path("ran-before")
    if not ran_before.exists():
        ran_before.touch()
        raise AssertionError("the machine | was busy\nand more")
