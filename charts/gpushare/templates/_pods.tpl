{{/* gpushare.image: prints the name of an image. Arguments: root, image. */}}
{{- define "gpushare.image" -}}
{{- $global := .root.Values.global -}}
{{- $registry := $global.imageRegistry | default .image.registry -}}
{{- $name := .image.repository -}}
{{- if $registry -}}
{{- $name = printf "%s/%s" (trimSuffix "/" $registry) (trimPrefix "localhost/" $name) -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.image.tag | default $global.imageTag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* gpushare.pod: applies a workload's values to its pod template. Arguments: root, template, values, image. */}}
{{- define "gpushare.pod" -}}
{{- $global := .root.Values.global -}}
{{- $values := .values -}}
{{- $pod := .template.spec -}}
{{- $container := first $pod.containers -}}
{{- $_ := set $container "image" (include "gpushare.image" (dict "root" .root "image" .image)) -}}
{{- with .image.pullPolicy -}}{{- $_ := set $container "imagePullPolicy" . -}}{{- end -}}
{{- with $global.imagePullSecrets -}}
{{- $secrets := list -}}
{{- range . -}}{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) -}}{{- end -}}
{{- $_ := set $pod "imagePullSecrets" $secrets -}}
{{- end -}}
{{- with mergeOverwrite (dict) $global.labels ($values.podLabels | default dict) -}}
{{- $_ := set $.template.metadata "labels" (merge (dict) $.template.metadata.labels .) -}}
{{- end -}}
{{- with $values.podAnnotations -}}
{{- $_ := set $.template.metadata "annotations" (mergeOverwrite (dict) ($.template.metadata.annotations | default dict) .) -}}
{{- end -}}
{{- with $values.podSecurityContext -}}
{{- $_ := set $pod "securityContext" (mergeOverwrite (dict) ($pod.securityContext | default dict) .) -}}
{{- end -}}
{{- with $values.securityContext -}}
{{- $_ := set $container "securityContext" (mergeOverwrite (dict) $container.securityContext .) -}}
{{- end -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" -}}
{{- if get $values $key -}}{{- $_ := set $pod $key (get $values $key) -}}{{- else -}}{{- $_ := unset $pod $key -}}{{- end -}}
{{- end -}}
{{- range $key := list "topologySpreadConstraints" "terminationGracePeriodSeconds" -}}
{{- if get $values $key -}}{{- $_ := set $pod $key (get $values $key) -}}{{- end -}}
{{- end -}}
{{- $_ := set $container "resources" $values.resources -}}
{{- with $values.logLevel -}}{{- $_ := set $container "args" (append $container.args (printf "--log-level=%s" .)) -}}{{- end -}}
{{- with $values.extraArgs -}}{{- $_ := set $container "args" (concat $container.args .) -}}{{- end -}}
{{- with $values.extraEnv -}}{{- $_ := set $container "env" (concat $container.env .) -}}{{- end -}}
{{- end -}}
