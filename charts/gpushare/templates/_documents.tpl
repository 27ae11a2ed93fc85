{{/*
`make chart` copies the objects of config/ to files/, so that kustomize and Helm have one source. These templates read the
objects, apply the enabled components of config/components, and print them. The template of each object applies the values
that change it.
*/}}

{{/* gpushare.documents: returns the objects of a file as {items: […]}. Arguments: root, file. */}}
{{- define "gpushare.documents" -}}
{{- $items := list -}}
{{- $text := .root.Files.Get .file | required (printf "%s is missing from the chart: run `make chart`" .file) -}}
{{- range regexSplit "(?m)^---$" $text -1 -}}
{{- $object := fromYaml . -}}
{{- if hasKey $object "kind" -}}
{{- include "gpushare.components" (dict "root" $.root "object" $object) -}}
{{- $items = append $items $object -}}
{{- end -}}
{{- end -}}
{{- dict "items" $items | toYaml -}}
{{- end -}}

{{/* gpushare.components: applies the patches of the enabled components to an object. Arguments: root, object. */}}
{{- define "gpushare.components" -}}
{{- $agent := .root.Values.agent -}}
{{- $webhook := .root.Values.webhook -}}
{{- $on := dict "cert-manager" $webhook.certManager.enabled "client-ca" $webhook.clientCA.enabled -}}
{{- $on = merge $on (dict "cdi" $agent.cdi.enabled "mig" $agent.mig.enabled "mps" $agent.mps.enabled "end-unlimited" $agent.endUnlimited "deny-unregistered" $agent.denyUnregistered "driver-memory" $agent.driverMemory "borrow" .root.Values.borrow.enabled) -}}
{{- range $name := list "cert-manager" "client-ca" "cdi" "mig" "mps" "end-unlimited" "deny-unregistered" "driver-memory" "borrow" -}}
{{- if get $on $name -}}
{{- $component := $.root.Files.Get (printf "files/components/%s/kustomization.yaml" $name) | fromYaml -}}
{{- range $entry := $component.patches -}}
{{- if $entry.target -}}
{{- if and (eq $entry.target.kind $.object.kind) (eq $entry.target.name $.object.metadata.name) -}}
{{- range $operation := fromYamlArray $entry.patch -}}
{{- include "gpushare.operation" (dict "object" $.object "operation" $operation) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* gpushare.operation: applies one operation of a JSON patch; supports those that the components use. Arguments: object, operation. */}}
{{- define "gpushare.operation" -}}
{{- $way := list -}}
{{- range splitList "/" (trimPrefix "/" .operation.path) -}}
{{- $way = append $way (. | replace "~1" "/" | replace "~0" "~") -}}
{{- end -}}
{{- $appends := eq (last $way) "-" -}}
{{- if $appends -}}{{- $way = initial $way -}}{{- end -}}
{{- $here := .object -}}
{{- range initial $way -}}
{{- if kindIs "slice" $here -}}{{- $here = index $here (int .) -}}{{- else -}}{{- $here = get $here . -}}{{- end -}}
{{- end -}}
{{- if and (eq .operation.op "add") $appends -}}
{{- $_ := set $here (last $way) (append (get $here (last $way)) .operation.value) -}}
{{- else if has .operation.op (list "add" "replace") -}}
{{- $_ := set $here (last $way) .operation.value -}}
{{- else if ne .operation.op "test" -}}
{{- fail (printf "this chart does not support the JSON patch operation %s of a component" .operation.op) -}}
{{- end -}}
{{- end -}}

{{/* gpushare.print: prints an object with the chart's labels. Arguments: root, object. */}}
{{- define "gpushare.print" -}}
{{- $labels := include "gpushare.labels" .root | fromYaml -}}
{{- $_ := set .object.metadata "labels" (merge (dict) (.object.metadata.labels | default dict) $labels) -}}
---
{{ toYaml .object }}
{{ end -}}

{{/* gpushare.file: prints all objects of a file. Arguments: root, file. */}}
{{- define "gpushare.file" -}}
{{- range (include "gpushare.documents" . | fromYaml).items -}}
{{- include "gpushare.print" (dict "root" $.root "object" .) -}}
{{- end -}}
{{- end -}}

{{/* gpushare.labels: prints the labels of all objects. Argument: root. */}}
{{- define "gpushare.labels" -}}
{{- with .Values.global.labels }}
{{- toYaml . }}
{{ end -}}
app.kubernetes.io/part-of: gpushare
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}
