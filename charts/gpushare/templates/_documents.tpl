{{/*
The objects are those of config/, copied into files/ by `make chart`: one source for kustomize and Helm. What is here reads
them, applies the components of config/components that are switched on, and prints them. What a value changes of an object
is said in the template of that object.
*/}}

{{/* gpushare.documents: the objects of a file, as {items: […]}. Takes root, file. */}}
{{- define "gpushare.documents" -}}
{{- $items := list -}}
{{- $text := .root.Files.Get .file | required (printf "%s is not in this chart: make it by `make chart`" .file) -}}
{{- range regexSplit "(?m)^---$" $text -1 -}}
{{- $object := fromYaml . -}}
{{- if hasKey $object "kind" -}}
{{- include "gpushare.components" (dict "root" $.root "object" $object) -}}
{{- $items = append $items $object -}}
{{- end -}}
{{- end -}}
{{- dict "items" $items | toYaml -}}
{{- end -}}

{{/* gpushare.components: patches an object as the components do that are switched on. Takes root, object. */}}
{{- define "gpushare.components" -}}
{{- $agent := .root.Values.agent -}}
{{- $webhook := .root.Values.webhook -}}
{{- $on := dict "cert-manager" $webhook.certManager.enabled "client-ca" $webhook.clientCA.enabled -}}
{{- $on = merge $on (dict "cdi" $agent.cdi.enabled "mig" $agent.mig.enabled "mps" $agent.mps.enabled "end-unlimited" $agent.endUnlimited "deny-unregistered" $agent.denyUnregistered) -}}
{{- range $name := list "cert-manager" "client-ca" "cdi" "mig" "mps" "end-unlimited" "deny-unregistered" -}}
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

{{/* gpushare.operation: one operation of a JSON patch, of the kinds that our components use. Takes object, operation. */}}
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
{{- fail (printf "this chart cannot do the operation %s of a component" .operation.op) -}}
{{- end -}}
{{- end -}}

{{/* gpushare.print: an object with our labels. Takes root, object. */}}
{{- define "gpushare.print" -}}
{{- $labels := include "gpushare.labels" .root | fromYaml -}}
{{- $_ := set .object.metadata "labels" (merge (dict) (.object.metadata.labels | default dict) $labels) -}}
---
{{ toYaml .object }}
{{ end -}}

{{/* gpushare.file: all objects of a file, as they are. Takes root, file. */}}
{{- define "gpushare.file" -}}
{{- range (include "gpushare.documents" . | fromYaml).items -}}
{{- include "gpushare.print" (dict "root" $.root "object" .) -}}
{{- end -}}
{{- end -}}

{{/* gpushare.labels: of all objects. Takes the root. */}}
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
