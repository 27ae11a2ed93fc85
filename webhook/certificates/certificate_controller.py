"""The certificate controller: a Secret that all replicas share, the API server's trust in it, and our TLS context.

Every replica does the same: it reads the Secret, takes the next step if one is due, registers the trusted authorities
and only then serves. Steps are written by compare-and-swap; the replica that loses reads again. The manifests create
the MutatingWebhookConfiguration and select the pods; we write only its caBundle and, outside the cluster, our URL.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract
from gpushare.cluster import api_client, api_errors
from webhook.certificates import rotation
from webhook.certificates.rotation import Certificates, RotationStep, utc_now
from webhook.certificates.tls import Tls
from webhook.metrics import Metrics

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 2.0
ATTEMPTS: Final = 8

_KEYS: Final = ("ca.crt", "ca.key", "tls.crt", "tls.key")  # of the Secret, in the order of `Certificates`


@dataclasses.dataclass(eq=False)
class CertificateController:
    """Keeps the certificates valid. names: how the API server reaches us. url: registered instead of the Service."""

    api: api_client.ApiClient
    tls: Tls
    metrics: Metrics
    _: dataclasses.KW_ONLY
    namespace: str
    names: Sequence[str]
    url: str | None = None
    spread: datetime.timedelta = rotation.SPREAD
    clock: Callable[[], datetime.datetime] = utc_now

    def __post_init__(self) -> None:
        self._secrets = f"/api/v1/namespaces/{self.namespace}/secrets"
        self._problem: str | None = "the certificate has not been loaded yet"

    def missing(self) -> str | None:
        """Return why the API server cannot trust us yet, as a sentence, or None."""
        return None if self.tls.loaded is not None else self._problem

    async def run(self) -> None:
        while True:
            pause = await self.step()
            await asyncio.sleep(pause)

    async def step(self) -> float:
        try:
            held = await self._current()
            await register(self.api, held.bundle, url=self.url)
        except (api_errors.ClusterError, NotInstalledError) as error:
            self._problem = str(error)
            logger.warning("Could not maintain the certificates", extra={"err": str(error)})
            return RETRY_SECONDS
        if self.tls.load(held):
            ends = rotation.check(held)[1].not_valid_after_utc
            self.metrics.certificate_ends(ends.timestamp())
            logger.info("Loaded a certificate", extra={"names": list(self.names), "ends": ends.isoformat()})
        return self.spread.total_seconds() / rotation.LOOKS_IN_A_SPREAD

    async def _current(self) -> Certificates:
        """Take the step that is due, if any; return the certificates after it."""
        for _ in range(ATTEMPTS):
            try:
                secret = await self.api.get(f"{self._secrets}/{contract.CERTIFICATE_SECRET}")
            except api_errors.NotFound:
                secret = None
            held = _read(secret) if secret else None
            now = self.clock()
            asked = contract.ROTATE in ((secret or {}).get("metadata", {}).get("annotations") or {})
            step = rotation.next_step(held, self.names, now=now, asked=asked, spread=self.spread)
            if step is RotationStep.KEEP and held is not None:
                return held
            wanted = rotation.apply_step(step, held, self.names, now=now)
            try:
                await self._write(secret, wanted, begins=step in {RotationStep.START, RotationStep.TRUST_NEW_AUTHORITY})
            except (api_errors.Conflict, api_errors.AlreadyExists):
                logger.info("Another replica took the step first", extra={"step": step.value})
                continue
            logger.info("Changed the certificates", extra={"step": step.value, "names": list(self.names)})
            return wanted
        raise api_errors.Conflict(
            f"{self._secrets}/{contract.CERTIFICATE_SECRET}: lost {ATTEMPTS} write conflicts in a row to other replicas"
        )

    async def _write(self, secret: Mapping[str, Any] | None, held: Certificates, *, begins: bool) -> None:
        texts = (held.bundle, held.authority_key, held.serving, held.serving_key)
        data = {key: base64.b64encode(text.encode()).decode() for key, text in zip(_KEYS, texts, strict=True)}
        if secret is not None:
            changed = {**secret, "data": {**(secret.get("data") or {}), **data}}
            if begins:  # the annotation requests one rotation only
                notes = secret["metadata"].get("annotations") or {}
                kept = {key: value for key, value in notes.items() if key != contract.ROTATE}
                changed["metadata"] = {**secret["metadata"], "annotations": kept}
            await self.api.replace(f"{self._secrets}/{contract.CERTIFICATE_SECRET}", changed)
            return
        try:
            await self.api.create(
                self._secrets,
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"namespace": self.namespace, "name": contract.CERTIFICATE_SECRET},
                    "data": data,
                },
            )
        except api_errors.Forbidden as error:
            raise api_errors.Forbidden(
                f"there is no Secret {self.namespace}/{contract.CERTIFICATE_SECRET}, and we may not create it: "
                f"install config/default ({error})",
                status=error.status,
                reason=error.reason,
            ) from error


def _read(secret: Mapping[str, Any]) -> Certificates | None:
    """Read the certificates in the Secret; None if there are none, or they are invalid."""
    data = secret.get("data") or {}
    if not any(data.get(key) for key in _KEYS):
        return None
    try:
        trusted, *others = (base64.b64decode(data[key]).decode() for key in _KEYS)
        return Certificates(rotation.split(trusted), *others)
    except (KeyError, ValueError) as error:
        logger.warning("The stored certificates are invalid and will be reissued", extra={"err": str(error)})
        return None


PATH: Final = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{contract.WEBHOOK_CONFIGURATION}"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"  # finds the webhook by its name


class NotInstalledError(Exception):
    """The webhook configuration is missing; the message says what to install."""


async def register(api: api_client.ApiClient, bundle: str, *, url: str | None) -> bool:
    """Make the API server trust `bundle` (PEM); return whether it wrote. Raises NotInstalledError, ClusterError."""
    try:
        configuration = await api.get(PATH)
    except api_errors.NotFound as error:
        raise NotInstalledError(
            f"there is no MutatingWebhookConfiguration {contract.WEBHOOK_CONFIGURATION}: install config/default"
        ) from error
    webhooks: list[dict[str, Any]] = configuration.get("webhooks") or []
    every = {str(entry.get("name")): entry.get("clientConfig") or {} for entry in webhooks}
    ours = {name: config for name, config in every.items() if is_ours(name)}
    if contract.WEBHOOK_NAME not in ours:
        raise NotInstalledError(
            f"the MutatingWebhookConfiguration {contract.WEBHOOK_CONFIGURATION} has no webhook "
            f"{contract.WEBHOOK_NAME}: install config/default"
        )
    wanted = {name: difference(config, bundle, url=url and url_of(name, url)) for name, config in ours.items()}
    patched = [{"name": name, "clientConfig": changes} for name, changes in wanted.items() if changes]
    if not patched:
        return False
    await api.patch(PATH, {"webhooks": patched}, STRATEGIC_MERGE_PATCH)
    fields = sorted({field for changes in wanted.values() for field in changes})
    logger.info("Registered with the API server", extra={"fields": fields, "url": url or ""})
    return True


def is_ours(name: str) -> bool:
    return name == contract.WEBHOOK_NAME or name.endswith(contract.SYNTAX_WEBHOOK_SUFFIX)


def url_of(name: str, url: str) -> str:
    """Return the URL of the webhook with this name, given that of the webhook for gpushare's own syntax."""
    return url if name == contract.WEBHOOK_NAME else f"{url}/{name.removesuffix(contract.SYNTAX_WEBHOOK_SUFFIX)}"


def difference(webhook: Mapping[str, Any], bundle: str, *, url: str | None) -> dict[str, Any]:
    """Return the changes that a clientConfig needs; empty for none. Pure."""
    wanted: dict[str, Any] = {}
    encoded = base64.b64encode(bundle.encode()).decode()
    if webhook.get("caBundle") != encoded:
        wanted["caBundle"] = encoded
    if url is not None and webhook.get("url") != url:
        wanted["url"] = url
    if url is not None and webhook.get("service") is not None:
        wanted["service"] = None  # the API server accepts only one of the two
    return wanted
