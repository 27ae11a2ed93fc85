"""The configuration files of the lab's API server: authentication, authorization, and its credentials for webhooks.

`{certificates}` in them is the directory of the lab's certificates. docs/security.md has the same files for any
cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lab import api_audit

# Anonymous requests may only read the health endpoints.
AUTHENTICATION: Final = """\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
  - path: /readyz
  - path: /healthz
"""

# An agent may read only the pods on its node. No server listens at the webhook's address, so it always refuses.
AUTHORIZATION: Final = """\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Node
  name: node
- type: Webhook
  name: pods-of-other-nodes
  webhook:
    timeout: 3s
    authorizedTTL: 10s
    unauthorizedTTL: 10s
    failurePolicy: Deny
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    connectionInfo:
      type: KubeConfigFile
      kubeConfigFile: {certificates}/unused.kubeconfig
    matchConditions:
    - expression: request.user == 'system:serviceaccount:gpushare-system:gpushare-agent'
    - expression: has(request.resourceAttributes) && request.resourceAttributes.resource == 'pods'
    - expression: >-
        !(has(request.resourceAttributes.fieldSelector) && has(request.resourceAttributes.fieldSelector.requirements) &&
        'authentication.kubernetes.io/node-name' in request.extra &&
        request.resourceAttributes.fieldSelector.requirements.exists(one,
        one.key == 'spec.nodeName' && one.operator == 'In' &&
        one.values == request.extra['authentication.kubernetes.io/node-name']))
- type: RBAC
  name: rbac
"""
UNUSED_KUBECONFIG: Final = """\
apiVersion: v1
kind: Config
clusters:
- name: unused
  cluster:
    server: https://localhost:1
contexts:
- name: unused
  context:
    cluster: unused
    user: unused
current-context: unused
"""

# A webhook may request a client certificate, and recognises the API server by it.
WEBHOOK_CLIENT: Final = "kube-apiserver-webhook-client"
ADMISSION: Final = """\
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: MutatingAdmissionWebhook
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: WebhookAdmissionConfiguration
    kubeConfigFile: {certificates}/webhooks.kubeconfig
"""
WEBHOOKS: Final = """\
apiVersion: v1
kind: Config
users:
- name: "*"
  user:
    client-certificate: {certificates}/kube-apiserver-webhook-client.crt
    client-key: {certificates}/kube-apiserver-webhook-client.key
"""

_FILES: Final[Mapping[str, str]] = {
    "authentication.yaml": AUTHENTICATION,
    "authorization.yaml": AUTHORIZATION,
    "unused.kubeconfig": UNUSED_KUBECONFIG,
    "admission.yaml": ADMISSION,
    "webhooks.kubeconfig": WEBHOOKS,
    "audit.yaml": api_audit.POLICY,
}


def write(certificates: Path) -> None:
    """Write the files into the directory of the certificates."""
    for name, text in _FILES.items():
        (certificates / name).write_text(text.replace("{certificates}", str(certificates)))


def flags(certificates: Path, *, has_nodes: bool) -> tuple[str, ...]:
    """Return the API server's flags for these files. A lab without nodes uses RBAC alone, because a rules review cannot
    list permissions that an authorization webhook grants.
    """
    authorization = f"config={certificates / 'authorization.yaml'}" if has_nodes else "mode=Node,RBAC"
    return (
        f"--authentication-config={certificates / 'authentication.yaml'}",
        f"--authorization-{authorization}",
        f"--admission-control-config-file={certificates / 'admission.yaml'}",
        f"--audit-policy-file={certificates / 'audit.yaml'}",
    )
