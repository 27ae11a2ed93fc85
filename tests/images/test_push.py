"""Pushing to a real registry on loopback, and to servers that are not registries."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from config.images import build, push
from lab import lab_errors, prerequisites

PLAIN = ("--dest-tls-verify=false",)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pushed_images_can_be_pulled_by_digest(registry: str, archives: build.Archives, tmp_path: Path) -> None:
    prefix = f"{registry}/platform/gpushare"
    places = push.push(archives, prefix, options=PLAIN)
    assert json.loads(push.record(places, tmp_path).read_text()) == places
    assert set(places) == {"webhook", "agent", "plugin"}
    for name, made in archives.by_name().items():
        place = places[name]
        tag = made.name.rpartition(":")[2]
        assert place == {"repository": f"{prefix}/{name}", "tag": tag, "digest": made.digest}
        for reference in (f"{place['repository']}:{tag}", f"{place['repository']}@{place['digest']}"):
            command = [prerequisites.program("skopeo"), "inspect", "--tls-verify=false", f"docker://{reference}"]
            shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            assert shown["Digest"] == made.digest


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_unreachable_registry_is_named(archives: build.Archives) -> None:
    # Port 1 is reserved, and nothing listens there.
    with pytest.raises(
        lab_errors.LabError, match=r"^127\.0\.0\.1:1/a/webhook:\S+ was not pushed: .*refused.*skopeo login"
    ):
        push.push(archives, "127.0.0.1:1/a", options=PLAIN)


@pytest.mark.parametrize(
    "prefix",
    ["gpushare", "docker.io/", "https://registry.example.com", "registry.example.com/A", "x y.z/a", "/a", "a.b:c"],
)
def test_an_invalid_registry_is_rejected_before_sending(prefix: str) -> None:
    with pytest.raises(lab_errors.LabError, match=r"is not a registry and folder; name them like"):
        push.checked(prefix)


@pytest.mark.parametrize(
    "prefix",
    ["registry.example.com", "registry.example.com/team/gpu-share", "localhost/a", "localhost:5000", "[::1]:5000/a"],
)
def test_a_valid_registry_is_accepted(prefix: str) -> None:
    assert push.checked(prefix) == prefix
