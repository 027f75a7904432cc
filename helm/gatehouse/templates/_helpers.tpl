{{- define "gatehouse.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "gatehouse.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "gatehouse.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gatehouse.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gatehouse.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Labels of all objects; `component` is added for objects other than the gateway itself. */}}
{{- define "gatehouse.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
{{ include "gatehouse.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods, without the chart's version, which would replace pods although nothing has changed. dict "root" $ "component" "" */}}
{{- define "gatehouse.podLabels" -}}
{{ include "gatehouse.selectorLabels" .root }}
app.kubernetes.io/component: {{ .component }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* metadata of an object: dict "root" $ "suffix" "" "labels" {} "annotations" {} "component" "" */}}
{{- define "gatehouse.metadata" -}}
{{- $root := .root -}}
name: {{ printf "%s%s" (include "gatehouse.fullname" $root) (empty .suffix | ternary "" (printf "-%s" .suffix)) | quote }}
namespace: {{ $root.Release.Namespace | quote }}
labels:
  {{- include "gatehouse.labels" $root | nindent 2 }}
  {{- with .component }}
  app.kubernetes.io/component: {{ . }}
  {{- end }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := merge (dict) (default (dict) .annotations) $root.Values.commonAnnotations }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "gatehouse.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "gatehouse.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* dict "root" $ "image" .Values.image "tag" "default tag" */}}
{{- define "gatehouse.image" -}}
{{- $registry := default .image.registry .root.Values.global.imageRegistry -}}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest -}}@{{ .image.digest }}{{- else -}}:{{ default .tag .image.tag }}{{- end -}}
{{- end -}}

{{- define "gatehouse.pullSecrets" -}}
{{- $names := list -}}
{{- range concat .Values.global.imagePullSecrets .Values.image.pullSecrets -}}
{{- $names = append $names (kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") .) -}}
{{- end -}}
{{- with uniq $names }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "gatehouse.isSidecar" -}}{{- if eq .Values.mode "sidecar" -}}yes{{- end -}}{{- end -}}
{{- define "gatehouse.usesRedis" -}}{{- if or (eq .Values.store.type "redis") .Values.valkey.enabled -}}yes{{- end -}}{{- end -}}
{{- define "gatehouse.servesTls" -}}{{- if not .Values.tls.terminatedInFront -}}yes{{- end -}}{{- end -}}
{{- define "gatehouse.adminScheme" -}}{{- if dig "admin" "tls" false (default dict .Values.config) -}}HTTPS{{- else -}}HTTP{{- end -}}{{- end -}}
{{- define "gatehouse.requestsClientCertificates" -}}
{{- $given := dig "certificates" "issuers" list (default dict .Values.config) -}}
{{- if or .Values.clientCA.existingSecret .Values.clientCA.existingConfigMap $given -}}yes{{- end -}}
{{- end -}}
{{- define "gatehouse.hasMultiplePods" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1) -}}yes{{- end -}}
{{- end -}}

{{- define "gatehouse.tlsSecret" -}}
{{- default (printf "%s-tls" (include "gatehouse.fullname" .)) .Values.tls.existingSecret -}}
{{- end -}}
{{- define "gatehouse.configMapName" -}}
{{- default (include "gatehouse.fullname" .) .Values.existingConfigMap -}}
{{- end -}}
{{- define "gatehouse.valkeySecret" -}}
{{- default (printf "%s-valkey" (include "gatehouse.fullname" .)) .Values.valkey.existingSecret -}}
{{- end -}}

{{/* Labels of the pods in which gatehouse runs. */}}
{{- define "gatehouse.podSelector" -}}
{{- if include "gatehouse.isSidecar" . -}}
{{- toYaml .Values.sidecar.podSelector -}}
{{- else -}}
{{- include "gatehouse.selectorLabels" . }}
app.kubernetes.io/component: gateway
{{- end -}}
{{- end -}}

{{- define "gatehouse.publicHost" -}}
{{- $url := urlParse (default "" (default dict .Values.config).publicUrl) -}}
{{- regexReplaceAll ":[0-9]+$" (default "" $url.host) "" -}}
{{- end -}}

{{/* `null` removes a value of values.yaml; these cannot be removed. */}}
{{- define "gatehouse.securityContext" -}}
{{- $rules := dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532 "privileged" false "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (merge (dict) (default (dict) .Values.securityContext) $rules) -}}
{{- end -}}
{{- define "gatehouse.podSecurityContext" -}}
{{- $rules := dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532 "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (merge (dict) (default (dict) .Values.podSecurityContext) $rules) -}}
{{- end -}}
