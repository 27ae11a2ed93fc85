"""Makes the manifests of other sharers' syntaxes from the table in gpushare/syntaxes: webhooks and policies.

A namespace selector cannot express "one of these labels", so each syntax has its own webhook. These come before
gpushare's webhook for shares, which the API server then calls with the translated pod.
"""

from __future__ import annotations

import re
import textwrap
from typing import Final

from gpushare import contract
from gpushare.syntaxes.spelling import Marks
from gpushare.syntaxes.translation import SYNTAXES, Syntax

_MAX_LINE: Final = 120
_REQUESTS: Final = "container.resources.requests"
_CONTAINERS: Final = "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))"
_MIRROR: Final = f"'{contract.MIRROR_ANNOTATION}' in object.metadata.annotations"

_WEBHOOK: Final = """\
- name: {name}{suffix}
  admissionReviewVersions: [v1]
  clientConfig:
    service:
      name: gpushare-webhook
      namespace: gpushare-system
      path: {path}
      port: 443
  rules:
  - apiGroups: [""]
    apiVersions: [v1]
    operations: [CREATE]
    resources: [pods]
    scope: Namespaced
  matchPolicy: Equivalent
  namespaceSelector:
    matchLabels: {{{label}: "true"}}
    matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values: [kube-system, gpushare-system]
  matchConditions:
  - name: asks-in-this-syntax
    expression: >-
{expression}
  # It only translates.
  sideEffects: None
  reinvocationPolicy: IfNeeded
  failurePolicy: Fail
  timeoutSeconds: 10
"""

_POLICIES: Final = """\
# Made by `make chart` from gpushare/syntaxes.
#
# In a namespace that understands another sharer's syntax, rejects pods that were not translated, because without a
# share such a pod could start with whole GPUs. The API server evaluates this itself, so it also holds if the
# MutatingWebhookConfiguration is missing or another webhook changes the pod later.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: gpushare-translated
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods]
  validations:
{validations}---
# Rejects labels with which an administrator expects a syntax to be understood that gpushare does not know.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: gpushare-namespaces
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE, UPDATE]
      resources: [namespaces]
  matchConditions:
  - name: has-such-a-label
    expression: has(object.metadata.labels) && object.metadata.labels.exists(key, key.startsWith('{prefix}'))
  variables:
  - name: before
    expression: "oldObject != null && has(oldObject.metadata.labels) ? oldObject.metadata.labels : {{}}"
  # Labels from before this policy must not stop other changes.
  - name: changed
    expression: >-
      object.metadata.labels.filter(key, key.startsWith('{prefix}') &&
        !(key in variables.before && variables.before[key] == object.metadata.labels[key]))
  - name: unknown
    expression: "variables.changed.filter(key, !(key.replace('{prefix}', '') in [{words}]))"
  - name: wrong
    expression: "variables.changed.filter(key, !(object.metadata.labels[key] in ['true', 'false']))"
  validations:
  - expression: variables.unknown.size() == 0
    messageExpression: "'the label ' + variables.unknown[0] + ' names a syntax that gpushare does not understand: write {prefix} and one of {listed}'"
    reason: Invalid
  - expression: variables.wrong.size() == 0
    messageExpression: "'the label ' + variables.wrong[0] + ' has the value \\"' + object.metadata.labels[variables.wrong[0]] + '\\": write \\"true\\" or \\"false\\"'"
    reason: Invalid
  - expression: "variables.changed.size() == 0 || !(object.metadata.name in ['kube-system', 'gpushare-system'])"
    messageExpression: "'the label ' + variables.changed[0] + ' has no effect in the namespace ' + object.metadata.name + ', whose pods cannot have a share: remove it'"
    reason: Invalid
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: gpushare-namespaces
spec:
  policyName: gpushare-namespaces
  validationActions: [Deny]
"""  # noqa: E501 - sentences

_VALIDATION: Final = """\
  - expression: >-
      namespaceObject.metadata.?labels[?'{label}'].orValue('') != 'true' || !(
{expression})
    message: "this pod requests a GPU in {title}'s syntax, which gpushare should have translated: if another webhook adds the request, give its configuration a name that sorts before gpushare; otherwise, check that the MutatingWebhookConfiguration gpushare exists"
    reason: Forbidden
"""  # noqa: E501 - a sentence

# A policy without a matching binding costs nothing, so namespaces without such a label do not pay for it.
_BINDING: Final = """\
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: gpushare-translated-{name}
spec:
  policyName: gpushare-translated
  matchResources:
    namespaceSelector:
      matchLabels: {{{label}: "true"}}
  validationActions: [Deny]
"""


def webhooks(configuration: str) -> str:
    """Return the MutatingWebhookConfiguration with one webhook per syntax before gpushare's own."""
    own = f"- name: {contract.WEBHOOK_NAME}\n"
    made = "".join(
        _WEBHOOK.format(
            name=syntax.name,
            suffix=contract.SYNTAX_WEBHOOK_SUFFIX,
            path=f"{contract.WEBHOOK_PATH}/{syntax.name}",
            label=_label(syntax),
            expression=_wrapped(expression(syntax.marks), 6),
        )
        for syntax in SYNTAXES.values()
    )
    return re.sub(rf"(?s)(?<=\nwebhooks:\n).*?(?={re.escape(own)})", lambda _: made, configuration)


def policies() -> str:
    """Return the policies for pods and namespaces."""
    validations = "".join(
        _VALIDATION.format(label=_label(syntax), title=syntax.title, expression=_wrapped(expression(syntax.marks), 8))
        for syntax in SYNTAXES.values()
    )
    bindings = "".join(_BINDING.format(name=syntax.name, label=_label(syntax)) for syntax in SYNTAXES.values())
    words = ", ".join(f"'{name}'" for name in SYNTAXES)
    made = _POLICIES.format(
        validations=validations, prefix=contract.UNDERSTAND_PREFIX, words=words, listed=", ".join(SYNTAXES)
    )
    return made + bindings


def expression(marks: Marks) -> str:
    """Return in CEL whether `object`, a pod, asks in this syntax, as `Marks.found` does."""
    conditions = [f"!(has(object.metadata.annotations) && {_MIRROR})"]
    label, value = marks.ignored
    if label:
        conditions.append(
            f"!(has(object.metadata.labels) && '{label}' in object.metadata.labels && "
            f"object.metadata.labels['{label}'] == '{value}')"
        )
    by_key = []
    if marks.annotations:
        by_key.append(_has_key("annotations", marks.annotations))
    if marks.labels:
        own = tuple(name for key in contract.SHARE_KEYS for name in (key, f"{key}."))
        by_key.append(f"{_has_key('labels', marks.labels)} && !({_has_key('annotations', own)})")
    if marks.count:
        by_key = [f"{each} && {_has_resource((marks.count,))}" for each in by_key]
    asks = [*by_key, *([_has_resource(marks.resources)] if marks.resources else [])]
    return " && ".join([*conditions, asks[0] if len(asks) == 1 else f"(({') || ('.join(asks)}))"])


def _has_key(field: str, names: tuple[str, ...]) -> str:
    keys = f"object.metadata.{field}"
    return f"has({keys}) && {keys}.exists(key, {_is_one_of('key', names)})"


def _has_resource(names: tuple[str, ...]) -> str:
    # The API server copies limits of extended resources to requests.
    return (
        f"{_CONTAINERS}.exists(container, has(container.resources) && has({_REQUESTS}) && "
        f"{_REQUESTS}.exists(name, {_REQUESTS}[name] != '0' && ({_is_one_of('name', names)})))"
    )


def _is_one_of(variable: str, names: tuple[str, ...]) -> str:
    exact = [name for name in names if not name.endswith((".", "/"))]
    listed = ", ".join(f"'{name}'" for name in exact)
    tests = [f"{variable} in [{listed}]"] if len(exact) > 1 else [f"{variable} == {listed}"] if exact else []
    return " || ".join([*tests, *(f"{variable}.startsWith('{name}')" for name in names if name not in exact)])


def _label(syntax: Syntax) -> str:
    return f"{contract.UNDERSTAND_PREFIX}{syntax.name}"


def _wrapped(text: str, indent: int) -> str:
    margin = " " * indent
    return textwrap.fill(
        text, _MAX_LINE, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False, break_long_words=False
    )
