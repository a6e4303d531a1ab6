{{/* What the pods of all processes have in common. */}}

{{/* A secret as a variable: (list NAME {name, key}). */}}
{{- define "longbatch.secretEnv" -}}
{{- $name := index . 0 -}}{{- $secret := index . 1 -}}
{{- if $secret }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret.name | quote }}
      key: {{ $secret.key | quote }}
{{- end -}}
{{- end -}}

{{/* Settings as variables: a list of layers {group: {name: value}}, later ones win. */}}
{{- define "longbatch.settingsEnv" -}}
{{- $variables := dict -}}
{{- range $layer := . -}}
{{- range $group, $fields := $layer -}}
{{- range $name, $value := $fields -}}
{{- $_ := set $variables (printf "LONGBATCH_%s__%s" (upper $group) (upper $name)) $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := $variables }}
{{- if not (kindIs "invalid" $value) }}
- name: {{ $name }}
  {{- /* $( would be read as a reference to another variable. */}}
  value: {{ (kindIs "string" $value | ternary $value (toJson $value)) | replace "$(" "$$(" | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Variables of the API and of workers: {root, database, settings, secretSettings: those that it gets}. */}}
{{- define "longbatch.env" -}}
{{- $secrets := .root.Values.secrets -}}
{{- include "longbatch.secretEnv" (list "LONGBATCH_DATABASE__URL" .database) }}
{{- include "longbatch.secretEnv" (list "LONGBATCH_BROKER__URL" $secrets.broker) }}
{{- range $group, $fields := .secretSettings }}
{{- range $name, $secret := $fields }}
{{- include "longbatch.secretEnv" (list (printf "LONGBATCH_%s__%s" (upper $group) (upper $name)) $secret) }}
{{- end }}
{{- end }}
{{- include "longbatch.secretEnv" (list "AWS_ACCESS_KEY_ID" $secrets.s3AccessKeyId) }}
{{- include "longbatch.secretEnv" (list "AWS_SECRET_ACCESS_KEY" $secrets.s3SecretAccessKey) }}
{{- with .root.Values.objectStorage.region }}
- name: AWS_REGION
  value: {{ . | quote }}
{{- end }}
{{- with .root.Values.objectStorage.endpoint }}
- name: AWS_ENDPOINT_URL
  value: {{ . | quote }}
{{- end }}
{{- include "longbatch.settingsEnv" .settings }}
{{- with .root.Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The model that requests mean which name none: that of settings, otherwise the first engine's. As a layer of settings. */}}
{{- define "longbatch.modelSettings" -}}
{{- with .Values.engines }}
{{- dict "engine" (dict "model" (first .).model) | toJson -}}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{/* The pod's fields that do not depend on the process: {root, component, values}. No service links: Kubernetes would
     set LONGBATCH_API_PORT and the like, and an unknown LONGBATCH_ variable is refused at start. */}}
{{- define "longbatch.podFields" -}}
enableServiceLinks: false
automountServiceAccountToken: false
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if ne .component "migrations" }}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "longbatch.selector" (dict "root" $.root "component" $.component) | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "longbatch.podMetadata" -}}
labels:
  {{- /* Neither release nor version: a new one alone must not replace pods at work. */}}
  {{- include "longbatch.selector" . | nindent 2 }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := merge (deepCopy (.annotations | default dict)) .root.Values.podAnnotations }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "longbatch.containerFields" -}}
image: {{ include "longbatch.image" . | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- toYaml .root.Values.containerSecurityContext | nindent 2 }}
{{- end -}}

{{/* The image's root is read-only: uploads and documents are spooled in /tmp, and nothing else is written. */}}
{{- define "longbatch.tmpVolume" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.tmpSizeLimit }}
{{- end -}}

{{/* Of a worker: its port serves nothing but metrics, and answers as long as the process does. */}}
{{- define "longbatch.workerProbes" -}}
startupProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}
