"""caBundle: writes our CA, and outside the cluster our URL, into the MutatingWebhookConfiguration.

The manifests create it and select the pods. We write only these two fields.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from typing import Any, Final

from gpushare import contract
from gpushare.cluster import api_client, api_errors

logger = logging.getLogger(__name__)

PATH: Final = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{contract.WEBHOOK_CONFIGURATION}"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"  # finds the webhook by its name


class NotInstalledError(Exception):
    """The webhook configuration is missing; the message says what to install."""


async def register(api: api_client.ApiClient, bundle: str, *, url: str | None) -> bool:
    """Make the API server trust `bundle` (PEM) when it calls us; return whether a write was necessary.

    Raises NotInstalledError and ClusterError.
    """
    try:
        configuration = await api.get(PATH)
    except api_errors.NotFound as error:
        raise NotInstalledError(
            f"there is no MutatingWebhookConfiguration {contract.WEBHOOK_CONFIGURATION}: install config/default"
        ) from error
    webhook = _ours(configuration)
    wanted = difference(webhook.get("clientConfig") or {}, bundle, url=url)
    if not wanted:
        return False
    body = {"webhooks": [{"name": contract.WEBHOOK_NAME, "clientConfig": wanted}]}
    await api.patch(PATH, body, STRATEGIC_MERGE_PATCH)
    logger.info("Registered with the API server", extra={"fields": sorted(wanted), "url": url or ""})
    return True


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


def _ours(configuration: Mapping[str, Any]) -> Mapping[str, Any]:
    for entry in configuration.get("webhooks") or []:
        if entry.get("name") == contract.WEBHOOK_NAME:
            ours: Mapping[str, Any] = entry
            return ours
    raise NotInstalledError(
        f"the MutatingWebhookConfiguration {contract.WEBHOOK_CONFIGURATION} has no webhook {contract.WEBHOOK_NAME}: "
        "install config/default"
    )
