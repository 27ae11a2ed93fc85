"""Finds the API server and the credentials.

In a pod, the mounted ServiceAccount is read here. Elsewhere, kubernetes_asyncio reads the kubeconfig with everything
that it may contain (exec plugins, OIDC, several files). That package is imported only then: it brings a thousand
modules and 39 MiB, which the agent on every node would carry for nothing. Credentials expire while a daemon runs, so
they are read again once a minute when used, and at once after a 401.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.cluster import api_errors

logger = logging.getLogger(__name__)

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REREAD_SECONDS: Final = 60.0
REFUSED_REREAD_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """The result of one reading of the source.

    server: `https://host:port`, perhaps with a path, without a trailing slash. authorization: the header's value, or
    None with a client certificate.
    """

    server: str
    authorization: str | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_name: str | None = None
    proxy: str | None = None


Source = Callable[[], Awaitable[Credentials]]


class ApiConnection:
    """The current credentials, and a TLS context that follows the files that it was made from."""

    def __init__(self, source: Source, access: Credentials, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._read_at = clock()
        self._reading = asyncio.Lock()
        self._versions: dict[str, int] = {}
        self.access = access
        self.tls = _context(access)
        self._trust(access)

    async def authorization(self, *, refused: bool = False) -> str | None:
        """Return the Authorization header's value. refused: the API server rejected this value, so read again."""
        async with self._reading:
            # Calls that were refused together read once, because reading may run an exec plugin.
            if self._clock() - self._read_at >= (REFUSED_REREAD_SECONDS if refused else REREAD_SECONDS):
                self._read_at = self._clock()
                try:
                    access = await self._source()
                    self._trust(access)
                    self.access = access
                except (OSError, api_errors.ClusterError) as error:
                    # The old ones may still be valid; otherwise the API server answers with 401.
                    logger.warning("Kept the last credentials: reading them again failed", extra={"err": str(error)})
        return self.access.authorization

    def _trust(self, access: Credentials) -> None:
        """Load a changed CA bundle or client certificate into the TLS context in use."""
        if self.tls is None:
            return
        ca, certificate = access.ca_file, access.certificate_file
        if ca and access.verify and self._changed(ca):
            self.tls.load_verify_locations(ca)
        if certificate and self._changed(certificate):
            self.tls.load_cert_chain(certificate, access.key_file)

    def _changed(self, path: str) -> bool:
        version = Path(path).stat().st_mtime_ns
        changed = self._versions.get(path) != version
        self._versions[path] = version
        return changed


def _context(access: Credentials) -> ssl.SSLContext | None:
    if not access.server.startswith("https:"):
        return None
    context = ssl.create_default_context(cafile=access.ca_file)
    # Newer Pythons require extensions that the certificates of many clusters lack and that kubectl does not check.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def find(
    kubeconfig: str | None,
    *,
    environment: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
    clock: Callable[[], float] = time.monotonic,
) -> ApiConnection:
    """Return the connection to the API server.

    kubeconfig: path or paths (separated as in KUBECONFIG). None means the mounted ServiceAccount if there is one, and
    otherwise KUBECONFIG or `~/.kube/config`.

    Raises ClusterError with a sentence if there is no usable configuration.
    """
    source: Source
    if kubeconfig is None and (service_account / "token").exists():
        source = functools.partial(_from_service_account, environment, service_account)
    else:
        source = _from_kubeconfig(kubeconfig or environment.get("KUBECONFIG") or str(Path.home() / ".kube" / "config"))
    try:
        return ApiConnection(source, await source(), clock=clock)
    except OSError as error:  # the ssl module raises it too
        raise api_errors.ClusterError(f"cannot use the credentials for the API server: {error}") from error


async def _from_service_account(environment: Mapping[str, str], directory: Path) -> Credentials:
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise api_errors.ClusterError(
            "a ServiceAccount token is mounted but KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set; "
            "specify a kubeconfig instead"
        )
    token = (directory / "token").read_text().strip()
    if not token:
        raise api_errors.ClusterError(f"the ServiceAccount token {directory / 'token'} is empty")
    return Credentials(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        authorization=f"Bearer {token}",
        ca_file=str(directory / "ca.crt"),
    )


def _from_kubeconfig(paths: str) -> Source:
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise api_errors.ClusterError(
            f"no ServiceAccount is mounted and there is no kubeconfig at {paths}; "
            "specify one with --kubeconfig or KUBECONFIG"
        )
    try:
        from kubernetes_asyncio import client as generated
        from kubernetes_asyncio import config
    except ImportError as error:
        raise api_errors.ClusterError(
            f"the kubeconfig {paths} cannot be read without the Python package kubernetes-asyncio, which the container "
            "images leave out; in a pod, use neither --kubeconfig nor KUBECONFIG; elsewhere, install the package"
        ) from error

    configuration = generated.Configuration()
    loader: config.kube_config.KubeConfigLoader | None = None

    async def read() -> Credentials:
        nonlocal loader
        try:
            if loader is None:
                # Never written back: the file belongs to the user.
                loader = await config.load_kube_config(paths, client_configuration=configuration, persist_config=False)
            else:
                await loader.load_and_set(configuration)  # runs an exec plugin only when its token is about to expire
        except Exception as error:  # the loader has no common error type
            raise api_errors.ClusterError(f"cannot use the kubeconfig {paths}: {error}") from error
        return Credentials(
            server=str(configuration.host).rstrip("/"),
            authorization=configuration.api_key.get("BearerToken"),
            ca_file=configuration.ssl_ca_cert,
            certificate_file=configuration.cert_file,
            key_file=configuration.key_file,
            verify=configuration.verify_ssl,
            server_name=configuration.tls_server_name,
            proxy=configuration.proxy,
        )

    return read
