{{/* Names and labels. Names stay below 63 characters: KEDA writes them into labels. */}}
{{- define "longbatch.fullname" -}}
{{- $name := .Values.fullnameOverride | default .Release.Name -}}
{{- if gt (len $name) 30 -}}
{{- fail (printf "the release's name %q has more than 30 characters: set fullnameOverride" $name) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]" $name) -}}
{{- fail (printf "a Service's name begins with a letter, the release's name %q does not: set fullnameOverride" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "longbatch.selector" -}}
app.kubernetes.io/name: longbatch
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .engine }}
longbatch/engine: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "longbatch.labels" -}}
{{ include "longbatch.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "longbatch.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "longbatch.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* {root, over}: `over` is an image whose tag and digest go before those of all processes, both together. */}}
{{- define "longbatch.image" -}}
{{- $image := .over | default .root.Values.image -}}
{{- .root.Values.image.repository -}}:{{- $image.tag | default .root.Chart.AppVersion -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/* The engine of this entry: its own values over engineDefaults; of `autoscaling` field by field. As JSON. */}}
{{- define "longbatch.engine" -}}
{{- $merged := deepCopy .root.Values.engineDefaults -}}
{{- $scaling := $merged.autoscaling -}}
{{- range $name, $value := .engine -}}
{{- if eq $name "autoscaling" -}}
{{- range $field, $set := $value -}}{{- $_ := set $scaling $field $set -}}{{- end -}}
{{- else -}}
{{- $_ := set $merged $name $value -}}
{{- end -}}
{{- end -}}
{{- $_ := set $merged "autoscaling" $scaling -}}
{{- $_ := set $merged "fullname" (printf "%s-engine-%s" (include "longbatch.fullname" .root) .engine.name) -}}
{{- if and $merged.server (or (gt (int $merged.replicas) 1) (and $scaling.enabled (gt (int $scaling.maxReplicas) 1))) -}}
{{- fail (printf "engines: %q has a server in its pod, so it has one pod: list another engine instead of replicas or autoscaling.maxReplicas above 1" .engine.name) -}}
{{- end -}}
{{- if and $merged.server (not (regexMatch "^[a-z]+://(127\\.0\\.0\\.1|localhost|\\[::1\\])(:|/|$)" $merged.url)) -}}
{{- fail (printf "engines: %q has a server in its pod, so its url is of 127.0.0.1, not %s" .engine.name $merged.url) -}}
{{- end -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "engines: %q has autoscaling.minReplicas above autoscaling.maxReplicas" .engine.name) -}}
{{- end -}}
{{- toJson $merged -}}
{{- end -}}
