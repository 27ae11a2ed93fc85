"""The images may be redistributed: every part has an allowed licence, and states it."""

from __future__ import annotations

import importlib.metadata
import re

import pytest
from license_expression import get_spdx_licensing

from config.images import contents, licences
from config.krew import make as krew
from lab import lab_errors

SPDX = get_spdx_licensing()
# Licence names in metadata older than licence expressions, and their SPDX ids.
MEANT = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
}
SHIPPED = {name for image in contents.IMAGES for name in image.wheels}


def declared(name: str) -> str:
    """Return the licence that a distribution's metadata states."""
    metadata = importlib.metadata.metadata(name)
    text = metadata.get("License-Expression") or metadata.get("License") or ""
    return MEANT.get(text, text)


def test_the_licence_tables_have_exactly_the_shipped_parts() -> None:
    assert set(licences.DEBIAN) == set(contents.PACKAGES)
    assert set(licences.WHEELS) == SHIPPED


@pytest.mark.parametrize(
    "expression",
    sorted({licences.OWN, *licences.DEBIAN.values(), *licences.WHEELS.values(), *licences.PROGRAMS.values()}),
)
def test_each_licence_is_an_allowed_spdx_id(expression: str) -> None:
    parsed = SPDX.parse(expression, validate=True)
    assert {str(key) for literal in parsed.literals for key in re.split(r" WITH ", str(literal))} <= licences.ALLOWED


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_wheel_metadata_states_the_same_licence(name: str) -> None:
    assert declared(name)
    assert licences.WHEELS[name].startswith(declared(name))


@pytest.mark.parametrize("name", sorted(krew.LIBRARIES))
def test_plugin_dependencies_state_the_same_licence(name: str) -> None:
    assert declared(name) in licences.ALLOWED


def test_unreviewed_licence_files_are_not_shipped() -> None:
    with pytest.raises(lab_errors.LabError, match=r"the licence of left-pad is unknown: read it, and write it into"):
        licences.of("pypi", "left-pad")
