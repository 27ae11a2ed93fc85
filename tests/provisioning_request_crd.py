"""The CustomResourceDefinition of ProvisioningRequests, with the fields that gpushare and the small autoscaler use."""

from __future__ import annotations

from typing import Any, Final

_REFERENCE = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
_POD_SET = {"podTemplateRef": _REFERENCE, "count": {"type": "integer", "minimum": 1}}
_SPEC = {
    "podSets": {
        "type": "array",
        "minItems": 1,
        "maxItems": 32,
        "items": {"type": "object", "required": ["podTemplateRef", "count"], "properties": _POD_SET},
    },
    "provisioningClassName": {"type": "string", "maxLength": 253},
    "parameters": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 255}},
}
_CONDITION = {key: {"type": "string"} for key in ("type", "status", "reason", "message", "lastTransitionTime")}
_CONDITIONS = {"type": "array", "items": {"type": "object", "properties": _CONDITION}}
# Cluster Autoscaler has its own: https://github.com/kubernetes/autoscaler, cluster-autoscaler/apis.
CRD: Final[dict[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "provisioningrequests.autoscaling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"},
    },
    "spec": {
        "group": "autoscaling.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "ProvisioningRequest", "plural": "provisioningrequests", "singular": "provisioningrequest"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["podSets", "provisioningClassName"],
                                "properties": _SPEC,
                            },
                            "status": {"type": "object", "properties": {"conditions": _CONDITIONS}},
                        },
                    }
                },
            }
        ],
    },
}
