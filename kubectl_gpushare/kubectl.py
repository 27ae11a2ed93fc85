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
    import socket

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
        return self._start("create", "--raw", path, "--filename=-", *self.flags, sent=body.encode()).text()

    @contextlib.contextmanager
    def proxied(self) -> Iterator[Proxy]:
        """Run `kubectl proxy`, for many requests with one start and one login; its socket is in a private directory."""
        import tempfile

        try:
            private = tempfile.TemporaryDirectory(prefix="gpushare-", ignore_cleanup_errors=True)
        except OSError as error:
            why = "no directory for the socket of kubectl proxy can be created"
            raise plugin_errors.KubectlError(f"{why} ({error}): set TMPDIR to a writable one") from error
        with private as directory:
            path = f"{directory}/socket"
            running, proxy = self._start("proxy", f"--unix-socket={path}", *self.flags), Proxy(path, self.flags)
            try:
                if not running.stdout.readline():  # it prints where it serves once it does
                    running.finish()
                yield proxy
            finally:
                proxy.close()
                running.stop()

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


class Answer:
    """The answer to a request, which arrives in chunks."""

    def chunks(self) -> Iterator[bytes]:
        raise NotImplementedError

    def reader(self) -> Reader:
        return Reader(self.chunks())

    def text(self, max_bytes: int | None = None) -> str:
        """Return the whole answer. Raises `KubectlError` and stops reading after `max_bytes`."""
        whole = bytearray()
        for chunk in self.chunks():
            whole += chunk
            if max_bytes is not None and len(whole) > max_bytes:
                self.stop()
                raise plugin_errors.KubectlError(f"the answer is longer than {max_bytes >> 20} MiB")
        return whole.decode()

    def stop(self) -> None:
        raise NotImplementedError


class Running(Answer):
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


class Proxy:
    """A running `kubectl proxy`. Requests run concurrently, each on its own connection."""

    def __init__(self, path: str, flags: Iterable[str]) -> None:
        self._path = path  # of its socket
        self._timeout_seconds = timeout_seconds(flags)
        self._begun: list[Proxied] = []

    def get(self, path: str) -> Answer:
        return self._begin("GET", path)

    def post(self, path: str, body: str) -> Answer:
        return self._begin("POST", path, body)

    def close(self) -> None:
        for answer in self._begun:
            answer.stop()

    def _begin(self, method: str, path: str, body: str | None = None) -> Answer:
        import socket

        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(self._timeout_seconds)
        self._begun.append(answer := Proxied(connected))
        try:
            connected.connect(self._path)
            answer.connection.request(method, path, body, {"Content-Type": "application/json"})
        except OSError as error:
            raise plugin_errors.KubectlError(f"kubectl proxy takes no request: {error}") from error
        return answer


class Proxied(Answer):
    """A request through the proxy."""

    def __init__(self, connected: socket.socket) -> None:
        import http.client

        self.connection = http.client.HTTPConnection("localhost")
        self.connection.sock = connected

    def chunks(self) -> Iterator[bytes]:
        import http.client

        try:
            response = self.connection.getresponse()
            if response.status >= http.HTTPStatus.BAD_REQUEST:
                raise explain(refusal(response.status, response.read().decode(errors="replace")))
            while chunk := response.read1(_CHUNK_BYTES):
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            raise plugin_errors.KubectlError(f"the API server's answer did not arrive in full: {error}") from error
        finally:
            self.stop()

    def stop(self) -> None:
        self.connection.close()


def refusal(status: int, body: str) -> str:
    """Return the error that kubectl prints for this response."""
    import json

    try:
        answer = json.loads(body)
        return f"Error from server ({answer['reason']}): {answer['message']}"
    except (ValueError, KeyError, TypeError):
        if status == 404:
            return "the server could not find the requested resource"
        return f"Unable to connect to the server: {body.strip()}"


def timeout_seconds(flags: Iterable[str]) -> float | None:
    """Return the time limit of a request by the flag --request-timeout, such as 1m30s or 90; None without one."""
    text = next((flag.partition("=")[2] for flag in flags if flag.startswith("--request-timeout=")), "")
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)(ms|s|m|h|)", text)) or None


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
