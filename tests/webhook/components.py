"""The components `borrow` and `demand` on a real API server."""

from __future__ import annotations

from collections.abc import Iterator

from lab import access
from tests.config import manifests
from tests.webhook import conftest


def installed(scheduler: access.Access, name: str, namespace: str) -> Iterator[access.Access]:
    """Yield the API server with the manifests of this release, and of a component with pods in this namespace."""
    component = manifests.CONFIG / "components" / name
    for administrator in conftest.installed(scheduler):
        for part in ("namespace", "template", "rights", "policy"):
            administrator.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={component / part}.yaml")
        administrator.ensure_default_service_account(namespace)
        # The policy stays: once none with its kind of parameter is left, Kubernetes 1.36 stops reading PodTemplates, and
        # finds no parameter of a policy that is created later.
        yield administrator
