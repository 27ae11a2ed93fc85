"""Every sample is what its comment says, and is accepted or refused by the real parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpushare import errors, request
from lab import demo
from tests.config import manifests


def pods(path: Path) -> list[dict[str, Any]]:
    """The pods of a sample, or its pod templates."""
    return [
        document["spec"]["template"] if document["kind"] == "Deployment" else document
        for document in manifests.documents(path)
    ]


@pytest.mark.parametrize("path", [*manifests.SAMPLES, *manifests.REFUSED], ids=lambda path: path.stem)
def test_a_sample_says_what_it_is_and_what_to_expect(path: Path) -> None:
    comment = [line for line in path.read_text().splitlines() if line.startswith("# ")]
    assert len(comment) >= 2
    assert comment[1].startswith("# Expect: ")
    assert path.read_text().startswith(comment[0])


@pytest.mark.parametrize("path", manifests.SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_a_request(path: Path) -> None:
    for pod in pods(path):
        assert request.parse(pod).demands


def test_what_is_refused_is_in_a_folder_of_its_own() -> None:
    (path,) = manifests.REFUSED
    for pod in pods(path):
        with pytest.raises(errors.RequestError, match=r'gpushare\.io/request "1\.5"'):
            request.parse(pod)


def test_the_demo_sends_every_sample_that_is_a_pod() -> None:
    names = {
        str(path.relative_to(manifests.CONFIG / "samples").with_suffix(""))
        for path in [*manifests.SAMPLES, *manifests.REFUSED]
        if all(document["kind"] == "Pod" for document in manifests.documents(path))
    }
    assert set(demo.SAMPLES) == names
    assert len(demo.SAMPLES) >= 12
