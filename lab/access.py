"""Access to a cluster, the lab's or any other: the kubeconfig, requests to the API, and kubectl."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import build, kubeconfig, lab_errors, lab_layout, pod_exec, raw_api

# A year, in seconds: longer than any lab exists.
LIFETIME_OF_TOKENS = 31_536_000
ACCOUNT_SECONDS = 30.0
ESTABLISHED_SECONDS = 30.0
MORE_SECONDS = 10.0  # in addition to its own timeout, for kubectl to start and to report

# Turns off Go's garbage collector: kubectl exits before it would help, and takes 0.05 s of a core instead of 0.07.
KUBECTL_ENVIRONMENT = {"GOGC": "off", "GOMEMLIMIT": "256MiB", "GOMAXPROCS": "1"}
# The API server rejects unknown fields of a server-side apply in any case. Reading all schemas takes kubectl 0.35 s.
_UNREAD_SCHEMAS = ("--validate=false",)


@dataclass(frozen=True, slots=True)
class Access:
    """An administrator's access: kubeconfig, server URL, the file with the server's CA, and the kubectl program.

    lab: the lab that it belongs to, with paths below its directory; None for any other cluster.
    """

    kubeconfig: Path
    server: str
    ca_file: Path
    kubectl_program: Path
    lab: lab_layout.Layout | None = None

    @property
    def has_controllers(self) -> bool:
        """Whether there is a controller manager, which creates a namespace's `default` ServiceAccount and empties
        deleted namespaces.
        """
        return self.lab is None or bool(self.lab.nodes)

    def kubectl(self, *arguments: str, input: str | None = None, seconds: float = 60.0) -> str:  # noqa: A002
        """Run kubectl; return its standard output.

        seconds: the time limit. By default a little more than the command's own `--timeout`, so that kubectl times out
        first and reports what it waited for.

        Raises:
            LabError: it failed, or took longer; the message contains its standard error.
        """
        seconds = max(seconds, _asked_seconds(arguments))
        unread = _UNREAD_SCHEMAS if "--server-side" in arguments else ()
        words = (*arguments[:1], *unread, *arguments[1:])
        command = [str(self.kubectl_program), f"--kubeconfig={self.kubeconfig}", *words]
        environment = {**os.environ, **KUBECTL_ENVIRONMENT}
        try:
            result = subprocess.run(
                command, input=input, capture_output=True, text=True, timeout=seconds, check=False, env=environment
            )
        except subprocess.TimeoutExpired:
            raise lab_errors.LabError(f"kubectl {' '.join(arguments)} took more than {seconds:.0f} s") from None
        if result.returncode:
            raise lab_errors.LabError(
                f"kubectl {' '.join(arguments)}: {result.stderr.strip() or result.stdout.strip()}"
            )
        return result.stdout

    def find(self, path: str) -> dict[str, Any] | None:
        """Return the object or list at an API path; None if there is none.

        This and the following methods raise LabError if the API server is unreachable or refuses. They are much cheaper
        than kubectl.
        """
        answer = raw_api.of(self.kubeconfig).send("GET", path)
        return None if answer is None else dict(json.loads(answer))

    def read(self, path: str) -> dict[str, Any]:
        """Return the object or list at an API path. Raises LabError if there is none."""
        return dict(json.loads(self._send("GET", path)))

    def text(self, path: str) -> str:
        """Return a response that is not JSON, such as a pod's page through the proxy."""
        return self._send("GET", path).decode()

    def execute(self, namespace: str, pod: str, *command: str, container: str = "") -> str:
        """Run a command in a container, as `kubectl exec` does; return its standard output.

        Raises:
            LabError: it failed, or took longer than a minute; the message contains its standard error.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        return pod_exec.run(raw_api.of(self.kubeconfig), path, command, container)

    def create(
        self, path: str, document: Mapping[str, object], *, dry_run: bool = False, user: str = ""
    ) -> dict[str, Any]:
        """Create an object in the list at `path`, as `user` if given; return it as stored, or as a dry run would store
        it.
        """
        query = f"fieldValidation=Strict{'&dryRun=All' if dry_run else ''}"
        return dict(json.loads(self._send("POST", f"{path}?{query}", document, user=user)))

    def patch(self, path: str, patch: Mapping[str, object] | Sequence[object], *, user: str = "") -> dict[str, Any]:
        """Change the object at `path` by a merge patch (a mapping) or a JSON patch, as `user`; return it as stored."""
        return dict(json.loads(self._send("PATCH", path, patch, user=user)))

    def delete(self, path: str, *, grace_seconds: int = 0) -> None:
        """Delete the object or list at `path`, by default without a grace period; no-op if there is none."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace_seconds}
        raw_api.of(self.kubeconfig).send("DELETE", path, options)

    def _send(self, method: str, path: str, document: object = None, *, user: str = "") -> bytes:
        answer = raw_api.of(self.kubeconfig).send(method, path, document, user=user)
        if answer is None:
            raise lab_errors.LabError(f"{method} {path}: NotFound: it was not found")
        return answer

    def service_account_kubeconfig(self, namespace: str, name: str, path: Path) -> Path:
        """Write a kubeconfig with a token of a ServiceAccount, which the API server issues; return its path.

        A process that uses it has exactly the permissions of the manifests.
        """
        token = self._token(namespace, name)
        kubeconfig.write(path, kubeconfig.with_token(self.server, self.ca_file, token, namespace))
        return path

    def mount_service_account(self, namespace: str, name: str, directory: Path) -> dict[str, str]:
        """Write the files that the kubelet mounts for a ServiceAccount; return a pod's variables with the server's
        address.
        """
        directory.mkdir(exist_ok=True)
        (directory / "token").write_text(self._token(namespace, name))
        shutil.copy(self.ca_file, directory / "ca.crt")
        server = urllib.parse.urlsplit(self.server)
        return {"KUBERNETES_SERVICE_HOST": server.hostname or "", "KUBERNETES_SERVICE_PORT": str(server.port or 443)}

    def _token(self, namespace: str, name: str) -> str:
        request = {"spec": {"expirationSeconds": LIFETIME_OF_TOKENS}}
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
        return str(self.create(f"{account}/token", request)["status"]["token"])

    @contextlib.contextmanager
    def namespace(self, prefix: str = "test") -> Iterator[str]:
        """Create a namespace in which pods can be created; remove it and all its pods afterwards."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        try:
            self.ensure_default_service_account(name)
            yield name
        finally:
            self._delete_namespace(name)

    def ensure_default_service_account(self, namespace: str) -> None:
        """Wait for the namespace's `default` ServiceAccount; create it if no controller does."""
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        if not self.has_controllers:
            if self.find(f"{accounts}/default") is None:
                self.create(accounts, {"metadata": {"name": "default"}})
            return
        deadline = time.monotonic() + ACCOUNT_SECONDS
        while self.find(f"{accounts}/default") is None:
            if time.monotonic() > deadline:
                raise lab_errors.LabError(
                    f"namespace {namespace} has no ServiceAccount default after {ACCOUNT_SECONDS} s; "
                    "see whether kube-controller-manager runs"
                )
            time.sleep(0.05)

    def wait_until_established(self, definition: str) -> None:
        """Wait until the API server serves an applied CustomResourceDefinition.

        `kubectl wait --for=condition=Established` fails at once while the conditions are null, as they are until the
        API server has processed the definition.
        """
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition}"
        deadline = time.monotonic() + ESTABLISHED_SECONDS
        while not _is_established(self.read(path)):
            if time.monotonic() > deadline:
                raise lab_errors.LabError(
                    f"{definition} is not established after {ESTABLISHED_SECONDS} s; see its conditions"
                )
            time.sleep(0.05)

    def _delete_namespace(self, name: str) -> None:
        path = f"/api/v1/namespaces/{name}"
        self.delete(path)  # first, so that no controller can create pods again
        self.delete(f"{path}/pods")
        if not self.has_controllers:
            self.finalize_namespace(name)

    def finalize_namespace(self, name: str) -> None:
        """Remove a deleted namespace's finalizer, as the namespace controller does."""
        path = f"/api/v1/namespaces/{name}/finalize"
        self._send("PUT", path, {"metadata": {"name": name}, "spec": {"finalizers": []}})


def _is_established(definition: Mapping[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)


def _asked_seconds(arguments: Sequence[str]) -> float:
    """Return the `--timeout` in these kubectl arguments, in seconds; 0 without one.

    Arguments after `--` belong to a container's command.
    """
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    matches = [match for argument in own if (match := re.fullmatch(r"--timeout=(\d+)s", argument))]
    return int(matches[-1][1]) + MORE_SECONDS if matches else 0.0


def from_kubeconfig(path: Path, scratch: Path) -> Access:
    """Return access to any cluster by its kubeconfig; its CA is written to a file in `scratch`."""
    on_path = shutil.which("kubectl")
    program = Path(on_path) if on_path else build.kubectl()
    command = [str(program), "config", "view", "--raw", "--minify", "--flatten", "--output=json"]
    environment = {**os.environ, "KUBECONFIG": str(path)}
    view = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if view.returncode:
        raise lab_errors.LabError(f"KUBECONFIG={path} cannot be used: {view.stderr.strip()}")
    cluster = json.loads(view.stdout)["clusters"][0]["cluster"]
    ca_file = scratch / "ca.crt"
    ca_file.write_bytes(base64.b64decode(cluster.get("certificate-authority-data", "")))
    whole = scratch / "kubeconfig"  # with embedded certificates, as the user's may refer to files
    kubeconfig.write(whole, view.stdout)
    return Access(whole, cluster["server"], ca_file, program)
