"""Runs kubectl as the transport, so that every kubeconfig, credential plugin and proxy works; it starts in 0.1 s."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING

from gpushare import contract, printable
from kubectl_gpushare import plugin_errors

if TYPE_CHECKING:
    from gpushare.object_parsers import Json

_CHUNK_BYTES = 1 << 20
# to read the stderr of a killed kubectl: a login program that it started may keep the pipe open
_LAST_WORDS_SECONDS = 0.2
# How kubectl's final error begins. Everything else on its stderr (a login prompt, a warning) is passed on to the user.
# Patterns are compiled on first use.
_LAST_WORDS = r"(?i)error: |Error from server|Unable to connect|The connection to the server|Error in config"
_UNREACHABLE = r"(?i)Unable to connect|connection to the server|deadline exceeded|i/o timeout|timed out|no such host"
_KLOG = r"[IWEF]\d{4} \d\d:\d\d:\d\d"

_NAMESPACE_OF_POD = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_GPUNODES = f"{contract.GPUNODE_PLURAL}.{contract.GROUP_NAME}"
_VIEWER, _USAGE_VIEWER = "gpushare-viewer", "gpushare-usage-viewer"  # ClusterRoles of config/base/rbac
_LOOKING = frozenset({"get", "list", "watch"})  # the verbs that _VIEWER allows
_RIGHT = r'(?s)User "([^"]*)" cannot (\w+) resource "([^"]*)"(?: in API group "([^"]*)")?(.*)'


@dataclasses.dataclass(frozen=True, slots=True)
class Kubectl:
    """A kubectl program and the flags that choose cluster and user, passed on as the user gave them."""

    flags: tuple[str, ...] = ()
    program: str = "kubectl"

    @classmethod
    def from_environment(cls, flags: tuple[str, ...], environment: Mapping[str, str]) -> Kubectl:
        return cls(flags, environment.get("KUBECTL_PATH") or "kubectl")

    def raw(self, path: str) -> Running:
        return self._start("get", "--raw", path, *self.flags)

    def patch(
        self, resource: str, name: str, patch: str, dry_run: bool = False, *, namespace: str = "", manager: str = ""
    ) -> str:
        flags = [*self.flags, *(["--dry-run=server"] if dry_run else [])]
        flags += [f"--field-manager={manager}"] if manager else []
        flags += [f"--namespace={namespace}"] if namespace else []
        return self._start("patch", resource, name, "--type=merge", f"--patch={patch}", *flags).text()

    def create(self, path: str, body: str) -> str:
        return self.post(path, body).text()

    def post(self, path: str, body: str) -> Running:
        """Start a POST of JSON that changes nothing: a review, or a dry run. Several may run at once."""
        return self._start("create", "--raw", path, "--filename=-", *self.flags, sent=body.encode())

    def namespace(self) -> str:
        """Return the namespace of the current context; in a pod without a kubeconfig the pod's, as kubectl does."""
        try:
            text = self._start("config", "view", "--minify", "--output=jsonpath={..namespace}", *self.flags).text()
        except plugin_errors.KubectlError:
            names_one = any(flag.startswith(("--context", "--kubeconfig")) for flag in self.flags)
            if names_one or not os.path.exists(_NAMESPACE_OF_POD):  # noqa: PTH110 - pathlib takes time to load
                raise
            with open(_NAMESPACE_OF_POD) as file:  # noqa: PTH123
                text = file.read()
        return text.strip() or "default"

    def current_context(self) -> str:
        flags = [flag for flag in self.flags if flag.startswith("--kubeconfig")]
        return self._start("config", "current-context", *flags).text().strip()

    def contexts(self) -> list[str]:
        flags = [flag for flag in self.flags if flag.startswith("--kubeconfig")]
        return self._start("config", "get-contexts", "--output=name", *flags).text().split()

    def _start(self, *arguments: str, sent: bytes | None = None) -> Running:
        whole = (self.program, *arguments)
        try:
            process = subprocess.Popen(
                whole, stdin=None if sent is None else subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise plugin_errors.KubectlError(
                f"{self.program} cannot be run ({os.strerror(error.errno or 0)}): install kubectl and put it on PATH, "
                "or read saved objects with --from FILE"
            ) from error
        if sent is not None and process.stdin is not None:
            # kubectl's final error says why it did not read the input
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(sent)
        return Running(process)


class Running:
    """A running kubectl process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - by construction
        assert process.stderr is not None  # noqa: S101
        self._process = process
        self.stdout: IO[bytes] = process.stdout
        self._said: list[str] = []
        self._listener = threading.Thread(target=self._listen, args=(process.stderr,), daemon=True)
        self._listener.start()

    def chunks(self) -> Iterator[bytes]:
        try:
            while chunk := self.stdout.read(_CHUNK_BYTES):
                yield chunk
        except BaseException:
            self.stop()
            raise
        self.finish()

    def reader(self) -> Reader:
        return Reader(self.chunks())

    def text(self, max_bytes: int | None = None) -> str:
        """Return kubectl's whole output. Raises `KubectlError` and stops reading after `max_bytes`."""
        whole = bytearray()
        for chunk in self.chunks():
            whole += chunk
            if max_bytes is not None and len(whole) > max_bytes:
                self.stop()
                raise plugin_errors.KubectlError(f"the answer is longer than {max_bytes >> 20} MiB")
        return whole.decode()

    def finish(self) -> None:
        code = self._process.wait()
        self._listener.join()
        self.stdout.close()
        if code:
            unsaid = f"kubectl ended with code {code}; the reason, if it gave one, is above"
            raise explain("\n".join(self._said) or unsaid)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join(_LAST_WORDS_SECONDS)
        self.stdout.close()

    def _listen(self, stream: IO[bytes]) -> None:
        for line in stream:
            text = line.decode(errors="replace").rstrip()
            if self._said or re.match(_LAST_WORDS, text):
                self._said.append(text)
            elif text and not re.match(_KLOG, text):
                print(printable.replaced(text.expandtabs()), file=sys.stderr, flush=True)
        stream.close()


class Reader:
    """Iterates over `(kind, object)` of every JSON document in `chunks`; raises `object_parsers.NotJson`."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        from gpushare import object_parsers

        self._chunks = chunks
        self._reader = object_parsers.ObjectReader()

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        for chunk in self._chunks:
            yield from self._reader.feed(chunk)
        yield from self._reader.feed(b"", is_last=True)

    @property
    def version(self) -> str:  # after the iteration: the resourceVersion of the last document
        metadata = self._reader.fields.get("metadata")
        return str(metadata.get("resourceVersion", "")) if isinstance(metadata, dict) else ""


def explain(said: str) -> plugin_errors.KubectlError:
    said = re.sub(r"^error: ", "", said.strip())
    if "could not find the requested resource" in said or "the server doesn't have a resource type" in said:
        return plugin_errors.NotInstalled(
            f"gpushare is not installed in this cluster (it has no {_GPUNODES}): run ./install.sh, "
            "or choose another cluster with --context"
        )
    if match := re.search(_RIGHT, said):
        return _forbidden(*match.groups())
    if "(Conflict)" in said or "the object has been modified" in said:
        return plugin_errors.KubectlConflict(f"it was changed at the same time: try again ({said})")
    if "(NotFound)" in said:
        return plugin_errors.KubectlNotFound(re.sub(r"^Error from server \(NotFound\): ", "", said))
    if "Unauthorized" in said or "must be logged in" in said:
        return plugin_errors.KubectlError(f"the API server does not accept the credentials: log in again ({said})")
    if "current-context must exist" in said:
        return plugin_errors.KubectlError(
            "no kubeconfig says which cluster: set KUBECONFIG, choose one with --kubeconfig or --context, or read "
            "saved objects with --from FILE"
        )
    if "getting credentials" in said:
        reason = said.rpartition("getting credentials: ")[2]
        return plugin_errors.KubectlError(
            f"kubectl gets no credentials from the program that the kubeconfig names ({reason}): log in with it, or "
            "install it"
        )
    if re.search(_UNREACHABLE, said):
        return plugin_errors.KubectlError(
            f"the API server cannot be reached: {said}; check it with `kubectl cluster-info`, or choose another "
            "cluster with --context"
        )
    return plugin_errors.KubectlError(re.sub(r"^Error from server \((\w+)\): ", r"the API server says \1: ", said))


def _forbidden(user: str, verb: str, resource: str, group: str | None, where: str) -> plugin_errors.KubectlForbidden:
    if group == contract.GROUP_NAME and verb in _LOOKING:
        remedy = (
            f"ask an admin for it: kubectl create clusterrolebinding {_VIEWER}-NAME --clusterrole={_VIEWER} "
            f"--user={user}"
        )
    elif resource in {"pods", "pods/proxy"} and f'"{contract.SYSTEM_NAMESPACE}"' in where:  # a request to an agent
        remedy = (
            f"ask an admin for it: kubectl -n {contract.SYSTEM_NAMESPACE} create rolebinding {_USAGE_VIEWER}-NAME "
            f"--clusterrole={_USAGE_VIEWER} --user={user}"
        )
    else:
        remedy = f'ask an admin for a role that allows "{verb}" on "{resource}"'
    name = f"{resource}.{group}" if group else resource
    return plugin_errors.KubectlForbidden(f'user "{user}" may not {verb} {name}{where.rstrip()}: {remedy}')
