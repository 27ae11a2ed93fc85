"""Volumes that would cover the files that enforce a container's limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract
from tests import builders
from webhook.pods import validation
from webhook.pods.pod_manifest import PodSpecView

OURS = ("/etc/ld.so.preload", "/etc/ld-nix.so.preload", "/usr/lib/gpushare", "/run/gpushare")


def mounting(path: str, where: str = "containers", listed: str = "volumeMounts", key: str = "mountPath") -> Any:
    manifest = builders.pod(request="0.5")
    more = {"name": "other", listed: [{"name": "v", key: path, "subPath": "file"}]}
    manifest["spec"].setdefault(where, []).append(more)
    return manifest


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        *((path, path) for path in OURS),
        ("/etc/../etc//ld.so.preload/", "/etc/ld.so.preload"),
        ("etc/ld.so.preload", "/etc/ld.so.preload"),
        (contract.CONTAINER_LIBRARY, "/usr/lib/gpushare"),
        ("/run/gpushare/arbiter.sock", "/run/gpushare"),
        ("/var/run/gpushare", "/run/gpushare"),
        ("/var/run/gpushare/x", "/run/gpushare"),
        ("/lib/gpushare/libgpushare.so", "/usr/lib/gpushare"),
        ("/etc", "/etc/ld.so.preload"),
        ("/usr/lib", "/usr/lib/gpushare"),
        ("/lib", "/usr/lib/gpushare"),
        ("/usr", "/usr/lib/gpushare"),
        ("/", "/run/gpushare"),
    ],
)
def test_mount_over_our_paths_is_denied_by_name(path: str, ours: str) -> None:
    assert validation.covered_path(path) == ours
    for where in ("containers", "initContainers", "ephemeralContainers"):
        denial = validation.read(PodSpecView.read(mounting(path, where)))
        assert isinstance(denial, validation.Denial)
        assert f'container "other" mounts a volume on "{path}", over {ours}' in denial.sentence
        assert denial.code == 403
    device = mounting(path, listed="volumeDevices", key="devicePath")
    assert isinstance(validation.read(PodSpecView.read(device)), validation.Denial)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/etc/ssl",
            "/etc/ld.so.conf.d",
            "/run",
            "/var/run",
            "/run/secrets",
            "/var/run/secrets/kubernetes.io/serviceaccount",
            "/var",
        ),
        *("/usr/lib/x86_64-linux-gnu", "/usr/lib/gpushare-other", "/run/gpushare.d", "/data", "/lib64", "/dev/shm"),
        "/usr/local",
    ],
)
def test_other_paths_may_be_mounted(path: str) -> None:
    assert validation.covered_path(path) is None
    assert not isinstance(validation.read(PodSpecView.read(mounting(path))), validation.Denial)


@given(
    st.lists(
        st.sampled_from(["etc", "run", "var", "usr", "lib", "gpushare", "ld.so.preload", ".", "", "x"]), max_size=6
    )
)
def test_law_more_slashes_and_dots_change_nothing(parts: list[str]) -> None:
    plain = "/" + "/".join(part for part in parts if part not in {"", "."})
    assert (
        validation.covered_path("/".join(parts))
        == validation.covered_path("//" + "/./".join(parts) + "//")
        == validation.covered_path(plain)
    )
