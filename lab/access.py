"""A way into a cluster, the lab's or one's own: the kubeconfig, and kubectl run with it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import api_reader, build, kubeconfig, lab_errors, lab_layout

# Longer than any lab lives.
LIFETIME_OF_TOKENS = "8760h"


@dataclass(frozen=True, slots=True)
class Access:
    """An administrator's access: kubeconfig, server URL, the file with the server's CA, and the kubectl program.

    `lab` is the lab it leads to, with the paths below its directory; None for one's own cluster.
    """

    kubeconfig: Path
    server: str
    ca_file: Path
    kubectl_program: Path
    lab: lab_layout.Layout | None = None

    @property
    def has_controllers(self) -> bool:
        """Without them nobody makes a namespace's `default` ServiceAccount, nor empties a deleted namespace."""
        return self.lab is None or bool(self.lab.nodes)

    def kubectl(self, *arguments: str, input: str | None = None, seconds: float = 60.0) -> str:  # noqa: A002
        """Run kubectl; return its standard output.

        Raises:
            LabError: it failed, or took longer than `seconds`; the message holds its standard error.
        """
        command = [str(self.kubectl_program), f"--kubeconfig={self.kubeconfig}", *arguments]
        try:
            result = subprocess.run(command, input=input, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise lab_errors.LabError(f"kubectl {' '.join(arguments)} took more than {seconds:.0f} s") from None
        if result.returncode:
            raise lab_errors.LabError(
                f"kubectl {' '.join(arguments)}: {result.stderr.strip() or result.stdout.strip()}"
            )
        return result.stdout

    def find(self, path: str) -> dict[str, Any] | None:
        """The object or list at a path of the API, None where there is none; much cheaper than kubectl.

        Raises:
            LabError: the API server is not there, or refuses.
        """
        reader = api_reader.of(self.kubeconfig)
        if reader is not None:
            return reader.get(path)
        try:
            document: dict[str, Any] = json.loads(self.kubectl("get", "--raw", path))
        except lab_errors.LabError as error:
            if "NotFound" in str(error):
                return None
            raise
        return document

    def read(self, path: str) -> dict[str, Any]:
        """The same, where there must be one: raises LabError otherwise."""
        document = self.find(path)
        if document is None:
            raise lab_errors.LabError(f"{path}: NotFound: it was not found")
        return document

    def service_account_kubeconfig(self, namespace: str, name: str, path: Path) -> Path:
        """Write a kubeconfig that acts as a ServiceAccount, by a token the API server issues; return its path.

        A process of the lab that uses it has exactly the rights of the manifests.
        """
        token = self.kubectl("create", "token", name, f"--namespace={namespace}", f"--duration={LIFETIME_OF_TOKENS}")
        kubeconfig.write(path, kubeconfig.with_token(self.server, self.ca_file, token.strip(), namespace))
        return path

    @contextlib.contextmanager
    def namespace(self, prefix: str = "test") -> Iterator[str]:
        """Give a new namespace in which pods can be created; remove it, and all its pods, afterwards."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        self.kubectl("create", "namespace", name)
        try:
            self.ensure_default_service_account(name)
            yield name
        finally:
            self._delete_namespace(name)

    def ensure_default_service_account(self, namespace: str) -> None:
        """Wait for, or without controllers make, the ServiceAccount that pods of a namespace get by default."""
        if self.has_controllers:
            self.kubectl("wait", f"--namespace={namespace}", "--for=create", "serviceaccount/default", "--timeout=30s")
        elif not self.kubectl("get", "serviceaccount", "default", f"--namespace={namespace}", "--ignore-not-found"):
            self.kubectl("create", "serviceaccount", "default", f"--namespace={namespace}")

    def _delete_namespace(self, name: str) -> None:
        self.kubectl("delete", "pods", "--all", f"--namespace={name}", "--force", "--grace-period=0", "--wait=false")
        self.kubectl("delete", "namespace", name, "--wait=false")
        if not self.has_controllers:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {"finalizers": []}}
            self.kubectl("replace", "--raw", f"/api/v1/namespaces/{name}/finalize", "-f", "-", input=json.dumps(body))


def from_kubeconfig(path: Path, scratch: Path) -> Access:
    """Return access to one's own cluster by its kubeconfig; its CA goes to a file in `scratch`."""
    on_path = shutil.which("kubectl")
    program = Path(on_path) if on_path else build.ensure() / "kubectl"
    command = [str(program), "config", "view", "--raw", "--minify", "--flatten", "--output=json"]
    environment = {**os.environ, "KUBECONFIG": str(path)}
    view = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if view.returncode:
        raise lab_errors.LabError(f"KUBECONFIG={path} cannot be used: {view.stderr.strip()}")
    cluster = json.loads(view.stdout)["clusters"][0]["cluster"]
    ca_file = scratch / "ca.crt"
    ca_file.write_bytes(base64.b64decode(cluster.get("certificate-authority-data", "")))
    return Access(path, cluster["server"], ca_file, program)
