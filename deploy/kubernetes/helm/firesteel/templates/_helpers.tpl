{{- define "firesteel.id" -}}
{{- .Values.clusterId | default .Release.Name -}}
{{- end }}

{{- define "firesteel.image" -}}
{{- .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion -}}
{{- end }}

{{- define "firesteel.selector" -}}
firesteel/cluster-id: {{ include "firesteel.id" . }}
{{- end }}

{{- define "firesteel.labels" -}}
app: {{ include "firesteel.id" . }}
{{ include "firesteel.selector" . }}
app.kubernetes.io/name: firesteel
app.kubernetes.io/instance: {{ include "firesteel.id" . }}
{{- end }}

{{- define "firesteel.metadata" -}}
labels:
  {{- include "firesteel.labels" . | nindent 2 }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "firesteel.masters" -}}
{{ include "firesteel.selector" . }}
component: jobmanager
{{- end }}

{{- define "firesteel.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (printf "%s-masters" (include "firesteel.id" .)) -}}
{{- end }}

{{- define "firesteel.config" -}}
{{- $computed := dict
  "kubernetes.cluster-id" (include "firesteel.id" .)
  "kubernetes.namespace" .Release.Namespace
  "kubernetes.container.image.ref" (include "firesteel.image" .)
  "kubernetes.container.image.pull-policy" .Values.image.pullPolicy
  "kubernetes.resourcemanager.address" (printf "%s-resourcemanager:6124" (include "firesteel.id" .))
  "high-availability.type" "kubernetes"
  "resourcemanager.rpc.port" "6124"
  "health.port" "6125"
  "rest.port" "8081"
  "security.enabled" (toString .Values.security.enabled) }}
{{- if .Values.image.pullSecrets }}
{{- $_ := set $computed "kubernetes.container.image.pull-secrets" (join ";" .Values.image.pullSecrets) }}
{{- end }}
{{- if not .Values.security.enabled }}
{{- $_ := set $computed "security.insecure-listen" "true" }}
{{- end }}
{{- range $key := keys .Values.config | sortAlpha }}
{{- if or (hasKey $computed $key) (regexMatch "^kubernetes\\.(masters|service-account|jobmanager|rest-service|network-policy|pod-template-file|config|context)\\b|^security\\.directory$" $key) }}
{{- fail (printf "config: %s is not allowed; other values of the chart decide it" $key) }}
{{- end }}
{{- if and (not (hasPrefix "kubernetes." $key)) (regexMatch "(?i)passw|secret|token|credential|(access|api|account|private)[._-]?key|authorization|jaas|^database\\.url$" $key) }}
{{- fail (printf "config: %s is secret; add it to the configuration of `firesteel cluster secrets` instead" $key) }}
{{- end }}
{{- end }}
{{- merge $computed .Values.config (dict "slotmanager.number-of-slots.max" "100") | toYaml -}}
{{- end }}
