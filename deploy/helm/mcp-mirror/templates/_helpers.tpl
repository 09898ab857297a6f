{{- define "mcp-mirror.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "mcp-mirror.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mcp-mirror.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "mcp-mirror.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "mcp-mirror.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "mcp-mirror.name" .) }}
{{- end }}

{{/* The configuration file: the user's `config` over what the chart knows. */}}
{{- define "mcp-mirror.config" -}}
{{- $name := include "mcp-mirror.name" . }}
{{- $hosts := concat .Values.hosts (list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.cluster.local" $name .Release.Namespace)) }}
{{- if ne (int .Values.service.port) 80 }}
{{- range $host := $hosts }}{{ $hosts = append $hosts (printf "%s:%d" $host (int $.Values.service.port)) }}{{ end }}
{{- end }}
{{- $server := dict "allowed_hosts" $hosts "drain" .Values.drain }}
{{- if .Values.stateKeySecret.name }}{{ $_ := set $server "state_keys" (list "${STATE_KEY}") }}{{ end }}
{{- if .Values.metrics.enabled }}{{ $_ := set $server "metrics" (printf "0.0.0.0:%d" (int .Values.metrics.port)) }}{{ end }}
{{- $own := dict "server" $server }}
{{- if .Values.redis.urlSecret.name }}{{ $_ := set $own "store" (dict "kind" "redis" "url" "${REDIS_URL}") }}{{ end }}
{{- toYaml (mergeOverwrite $own (deepCopy .Values.config)) }}
{{- end }}

{{/* Stops with an explanation where the gateways would not work. */}}
{{- define "mcp-mirror.check" -}}
{{- $auth := .Values.config.auth | default dict }}
{{- if not (or $auth.tokens $auth.issuers) }}
{{- fail "Set config.auth.tokens or config.auth.issuers: the gateway serves other machines only with authentication." }}
{{- end }}
{{- $most := .Values.replicas }}
{{- if .Values.autoscaling.enabled }}{{ $most = .Values.autoscaling.maxReplicas }}{{ end }}
{{- $store := .Values.config.store | default dict }}
{{- if and (gt (int $most) 1) (not .Values.redis.urlSecret.name) (ne ($store.kind | default "") "redis") }}
{{- fail "Set redis.urlSecret.name, or replicas: 1. Several gateways need one memory." }}
{{- end }}
{{- $server := .Values.config.server | default dict }}
{{- if and (gt (int $most) 1) (not .Values.stateKeySecret.name) (not $server.state_keys) }}
{{- fail "Set stateKeySecret.name: several gateways sign the state of calls with one key." }}
{{- end }}
{{- end }}
