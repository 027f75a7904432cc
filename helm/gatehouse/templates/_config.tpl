{{/* Settings that the chart determines. They are not in the schema of `config`, so they cannot be set there. */}}
{{- define "gatehouse.managedSettings" -}}
{{- $values := .Values -}}
listen:
  host: {{ $values.ports.host | quote }}
  port: {{ $values.ports.https }}
  {{- if include "gatehouse.servesTls" . }}
  tls:
    certificate: /etc/gatehouse/tls/tls.crt
    key: /etc/gatehouse/tls/tls.key
  {{- else }}
  behindTls: true
  {{- end }}
admin:
  host: {{ $values.ports.host | quote }}
  port: {{ $values.ports.admin }}
  {{- if $values.adminToken.existingSecret }}
  tokenFile: /etc/gatehouse/admin/{{ $values.adminToken.key }}
  {{- else }}
  tokenFile: /var/lib/gatehouse/admin-token
  {{- end }}
keys:
  file: /etc/gatehouse/keys/{{ $values.signing.key }}
store:
  {{- if $values.valkey.enabled }}
  type: redis
  url: redis://{{ include "gatehouse.fullname" . }}-valkey:6379/0
  passwordFile: /etc/gatehouse/redis/password
  {{- else if include "gatehouse.usesRedis" . }}
  type: redis
  {{- with $values.store.redis }}
  {{- if .urlKey }}
  urlFile: /etc/gatehouse/redis/{{ .urlKey }}
  {{- else }}
  url: {{ .url | quote }}
  {{- end }}
  {{- if and .existingSecret .passwordKey }}
  passwordFile: /etc/gatehouse/redis/{{ .passwordKey }}
  {{- end }}
  {{- if .tls.existingSecret }}
  tls:
    {{- with .tls.caKey }}
    ca: /etc/gatehouse/redis-tls/{{ . }}
    {{- end }}
    {{- with .tls.certificateKey }}
    certificate: /etc/gatehouse/redis-tls/{{ . }}
    {{- end }}
    {{- with .tls.keyKey }}
    key: /etc/gatehouse/redis-tls/{{ . }}
    {{- end }}
  {{- end }}
  {{- end }}
  {{- else }}
  type: embedded
  path: /var/lib/gatehouse/store
  {{- end }}
shutdown:
  preStop: {{ $values.lifecycle.preStopSleepSeconds }}s
  drain: {{ $values.lifecycle.drainSeconds }}s
{{- end -}}

{{/* Defaults that `config` overrides. */}}
{{- define "gatehouse.defaultSettings" -}}
{{- if or .Values.clientCA.existingSecret .Values.clientCA.existingConfigMap }}
certificates:
  issuers:
    {{- range .Values.clientCA.issuers }}
    - /etc/gatehouse/client-ca/{{ . }}
    {{- end }}
  {{- with .Values.clientCA.crls }}
  crls:
    {{- range . }}
    - /etc/gatehouse/client-ca/{{ . }}
    {{- end }}
  {{- end }}
{{- end }}
{{- with .Values.kubernetesIssuer }}
{{- if .enabled }}
trustedIssuers:
  {{ .name | quote }}:
    {{- $defaults := dict "claims" (dict "name" "sub") }}
    {{- toYaml (mergeOverwrite $defaults (deepCopy (default dict .config))) | nindent 4 }}
    issuer: {{ .issuer | quote }}
    audience: {{ .audience | toJson }}
    jwksUri: {{ .jwksUri | quote }}
    ca: /etc/gatehouse/kubernetes/ca.crt
    {{- if .serviceAccountToken.enabled }}
    bearerTokenFile: /etc/gatehouse/kubernetes/{{ .serviceAccountToken.path }}
    {{- end }}
{{- end }}
{{- end }}
{{- if and (include "gatehouse.isSidecar" .) (not (dig "upstreams" "default" false (default dict .Values.config))) }}
upstreams:
  default:
    url: http://127.0.0.1:{{ .Values.sidecar.upstreamPort }}
{{- end }}
log:
  format: json
{{- end -}}

{{- define "gatehouse.config" -}}
{{- $suggested := include "gatehouse.defaultSettings" . | fromYaml -}}
{{- $own := include "gatehouse.managedSettings" . | fromYaml -}}
{{- toYaml (mergeOverwrite $suggested (deepCopy (default dict .Values.config)) $own) -}}
{{- end -}}
