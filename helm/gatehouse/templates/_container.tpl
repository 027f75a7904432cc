{{/*
The container of the gateway's pods and of the sidecar in foreign pods: the same body.
dict "root" $ "kind" "gateway" | "native" | "plain"
*/}}
{{- define "gatehouse.container" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
name: gatehouse
image: {{ include "gatehouse.image" (dict "root" $root "image" $values.image "tag" $root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ $values.image.pullPolicy }}
{{- if eq .kind "native" }}
restartPolicy: Always
{{- end }}
args:
  - serve
  - --config
  - /etc/gatehouse/config/gatehouse.yaml
  {{- range $values.extraArgs }}
  - {{ . | quote }}
  {{- end }}
{{- with $values.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - name: gatehouse
    containerPort: {{ $values.ports.https }}
    protocol: TCP
  - name: gh-admin
    containerPort: {{ $values.ports.admin }}
    protocol: TCP
startupProbe:
  httpGet: { path: /livez, port: gh-admin, scheme: {{ include "gatehouse.adminScheme" $root }} }
  {{- toYaml $values.probes.startup | nindent 2 }}
livenessProbe:
  httpGet: { path: /livez, port: gh-admin, scheme: {{ include "gatehouse.adminScheme" $root }} }
  {{- toYaml $values.probes.liveness | nindent 2 }}
readinessProbe:
  httpGet: { path: '/readyz?exclude=store', port: gh-admin, scheme: {{ include "gatehouse.adminScheme" $root }} }
  {{- toYaml $values.probes.readiness | nindent 2 }}
{{- include "gatehouse.preStop" . }}
securityContext:
  {{- include "gatehouse.securityContext" $root | nindent 2 }}
resources:
  {{- toYaml $values.resources | nindent 2 }}
volumeMounts:
  {{- range include "gatehouse.mounts" $root | fromYamlArray }}
  - name: {{ .name }}
    mountPath: {{ .path }}
    {{- if not .writable }}
    readOnly: true
    {{- end }}
  {{- end }}
  {{- with $values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/*
Gateways and plain containers get SIGTERM at once and serve for `shutdown.preStop`. A native sidecar gets it only after the application
has ended, so its hook, which runs at once, announces the shutdown. A configuration that the chart does not manage may have no
`shutdown.preStop`: the kubelet waits there. Kubernetes 1.30 has a sleep action; before that, `gatehouse sleep` waits, because the
image has no shell.
dict "root" $ "kind" as above
*/}}
{{- define "gatehouse.preStop" -}}
{{- $values := .root.Values -}}
{{- $seconds := int $values.lifecycle.preStopSleepSeconds -}}
{{- if and (gt $seconds 0) (or (eq .kind "native") $values.existingConfigMap) }}
lifecycle:
  preStop:
    {{- if eq .kind "native" }}
    exec: { command: [/usr/local/bin/gatehouse, drain, {{ $seconds | quote }}] }
    {{- else if semverCompare ">=1.30.0-0" .root.Capabilities.KubeVersion.Version }}
    sleep: { seconds: {{ $seconds }} }
    {{- else }}
    exec: { command: [/usr/local/bin/gatehouse, sleep, {{ $seconds | quote }}] }
    {{- end }}
{{- end }}
{{- end -}}

{{/* All mounts, as a list of {name, path, writable, secret | configMap | kubernetes | data}. */}}
{{- define "gatehouse.mounts" -}}
{{- $values := .Values -}}
- { name: gatehouse-config, path: /etc/gatehouse/config, configMap: {{ include "gatehouse.configMapName" . | quote }} }
- { name: gatehouse-keys, path: /etc/gatehouse/keys, secret: {{ $values.signing.existingSecret | quote }} }
{{- if include "gatehouse.servesTls" . }}
- { name: gatehouse-tls, path: /etc/gatehouse/tls, secret: {{ include "gatehouse.tlsSecret" . | quote }} }
{{- end }}
{{- with $values.clientCA.existingSecret }}
- { name: gatehouse-client-ca, path: /etc/gatehouse/client-ca, secret: {{ . | quote }} }
{{- end }}
{{- with $values.clientCA.existingConfigMap }}
- { name: gatehouse-client-ca, path: /etc/gatehouse/client-ca, configMap: {{ . | quote }} }
{{- end }}
{{- if $values.kubernetesIssuer.enabled }}
- { name: gatehouse-kubernetes, path: /etc/gatehouse/kubernetes, kubernetes: true }
{{- end }}
{{- with $values.adminToken.existingSecret }}
- { name: gatehouse-admin, path: /etc/gatehouse/admin, secret: {{ . | quote }} }
{{- end }}
{{- with $values.secretFiles.existingSecret }}
- { name: gatehouse-secrets, path: /etc/gatehouse/secrets, secret: {{ . | quote }} }
{{- end }}
{{- if $values.valkey.enabled }}
- { name: gatehouse-redis, path: /etc/gatehouse/redis, secret: {{ include "gatehouse.valkeySecret" . | quote }}, only: [password] }
{{- else if and (include "gatehouse.usesRedis" .) $values.store.redis.existingSecret }}
- { name: gatehouse-redis, path: /etc/gatehouse/redis, secret: {{ $values.store.redis.existingSecret | quote }} }
{{- end }}
{{- if and (include "gatehouse.usesRedis" .) $values.store.redis.tls.existingSecret }}
- { name: gatehouse-redis-tls, path: /etc/gatehouse/redis-tls, secret: {{ $values.store.redis.tls.existingSecret | quote }} }
{{- end }}
- { name: gatehouse-data, path: /var/lib/gatehouse, writable: true }
{{- end -}}

{{/*
The volumes of that container. Secret files belong to root. In gateway pods `fsGroup` can read them; foreign pods may have no
`fsGroup`, so every user in the one container that mounts them can.
dict "root" $ "kind" as above
*/}}
{{- define "gatehouse.volumes" -}}
{{- $root := .root -}}
{{- $mode := ternary 288 292 (eq .kind "gateway") -}}
{{- range include "gatehouse.mounts" $root | fromYamlArray }}
{{- if .secret }}
- name: {{ .name }}
  secret:
    secretName: {{ .secret | quote }}
    defaultMode: {{ $mode }}
    {{- with .only }}
    items:
      {{- range . }}
      - { key: {{ . }}, path: {{ . }} }
      {{- end }}
    {{- end }}
{{- else if .configMap }}
- name: {{ .name }}
  configMap:
    name: {{ .configMap | quote }}
{{- else if .kubernetes }}
- name: {{ .name }}
  projected:
    defaultMode: {{ $mode }}
    sources:
      {{- with $root.Values.kubernetesIssuer }}
      - configMap:
          name: {{ .ca.existingConfigMap | quote }}
          items:
            - { key: {{ .ca.key | quote }}, path: ca.crt }
      {{- with .serviceAccountToken }}
      {{- if .enabled }}
      - serviceAccountToken:
          path: {{ .path | quote }}
          expirationSeconds: {{ .expirationSeconds }}
          {{- with .audience }}
          audience: {{ . | quote }}
          {{- end }}
      {{- end }}
      {{- end }}
      {{- end }}
{{- end }}
{{- end }}
{{- include "gatehouse.dataVolume" . }}
{{- with $root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Redis: only the admin token that each pod creates. Embedded: the store; a StatefulSet has its own claim. */}}
{{- define "gatehouse.dataVolume" -}}
{{- $persistence := .root.Values.store.persistence -}}
{{- if include "gatehouse.usesRedis" .root }}
- name: gatehouse-data
  emptyDir: { sizeLimit: 16Mi }
{{- else if $persistence.existingClaim }}
- name: gatehouse-data
  persistentVolumeClaim:
    claimName: {{ $persistence.existingClaim | quote }}
{{- else if ne .kind "gateway" }}
- name: gatehouse-data
  persistentVolumeClaim:
    claimName: {{ printf "%s-data" (include "gatehouse.fullname" .root) | quote }}
{{- end }}
{{- end -}}
