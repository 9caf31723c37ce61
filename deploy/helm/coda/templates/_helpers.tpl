{{/*
Names are fixed and not made from the release's: a cluster has one planner, and its Leases, roles and service accounts
are known by these names.
*/}}

{{- define "coda.namespace" -}}
{{- if ne .Release.Namespace "coda-system" -}}
{{- fail (printf "Coda keeps its Leases in the namespace coda-system, so that a cluster has one planner: install it there instead of into %q (--namespace coda-system --create-namespace)." .Release.Namespace) -}}
{{- end -}}
{{- .Release.Namespace -}}
{{- end }}

{{/* Labels of every object. Takes the root context, or a dict of root and component. */}}
{{- define "coda.labels" -}}
{{- $root := .root | default . -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: coda
{{ include "coda.selectorLabels" . }}
{{- end }}

{{/* Labels that select the pods of a component. */}}
{{- define "coda.selectorLabels" -}}
app.kubernetes.io/name: coda
app.kubernetes.io/instance: {{ (.root | default .).Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* Name, namespace and labels of an object that belongs to a component. Takes a dict of root and component. */}}
{{- define "coda.metadata" -}}
name: coda-{{ .component }}
namespace: {{ include "coda.namespace" .root }}
labels:
  {{- include "coda.labels" . | nindent 2 }}
{{- end }}

{{/* An image's reference: a digest wins. Takes a dict of image and the tag for an empty one. */}}
{{- define "coda.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .default }}
{{- end -}}
{{- end }}

{{/*
The cluster's version as kube-scheduler's images are tagged: without what a distribution appends to it. Many releases of
Argo CD name major and minor alone; the first patch release is never newer than the API server.
*/}}
{{- define "coda.clusterVersion" -}}
{{- $found := regexFind "^v[0-9]+\\.[0-9]+(\\.[0-9]+)?" .Capabilities.KubeVersion.Version -}}
{{- $found }}{{ if eq (len (splitList "." $found)) 2 }}.0{{ end -}}
{{- end }}

{{/* A user's node selector, and Linux: the images are for nothing else. Theirs wins. Takes the selector. */}}
{{- define "coda.nodeSelector" -}}
{{- merge (dict) (. | default dict) (dict "kubernetes.io/os" "linux") | toYaml }}
{{- end }}

{{/* What every pod's spec has. Takes a dict of root and component. */}}
{{- define "coda.podSpec" -}}
serviceAccountName: coda-{{ .component }}
enableServiceLinks: false  # a Service that is called "coda" would set CODA_PORT
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
nodeSelector:
  {{- include "coda.nodeSelector" .root.Values.nodeSelector | nindent 2 }}
{{- /* The user's own tolerations. Each part leaves a node that is away after 30 s, unless these say when: those with
another effect than NoExecute do not. */}}
{{- $tolerations := .root.Values.tolerations | default list }}
{{- $keys := list }}
{{- range $tolerations }}
{{- if eq (.effect | default "NoExecute") "NoExecute" }}{{ $keys = append $keys (.key | default "") }}{{ end }}
{{- end }}
{{- range list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" }}
{{- if not (or (has . $keys) (has "" $keys)) }}
{{- $tolerations = append $tolerations (dict "key" . "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 30) }}
{{- end }}
{{- end }}
tolerations:
  {{- toYaml $tolerations | nindent 2 }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "coda.selectorLabels" . | nindent 8 }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
  {{- if and (eq .component "operator") (eq .root.Values.history.database "sqlite") .root.Values.podSecurityContext.runAsGroup (not .root.Values.podSecurityContext.fsGroup) }}
  fsGroup: {{ .root.Values.podSecurityContext.runAsGroup }}  # a new volume belongs to root
  {{- end }}
{{- end }}

{{/* Refuses a database that the operators cannot share, and one that nobody named. */}}
{{- define "coda.checkHistory" -}}
{{- if and (eq .Values.history.database "sqlite") (gt (int .Values.operator.replicas) 1) -}}
{{- fail (printf "operator.replicas is %d, and SQLite serves one operator: set history.database=postgresql and history.postgresql.secretName, or operator.replicas=1." (int .Values.operator.replicas)) -}}
{{- end -}}
{{- if and (eq .Values.history.database "postgresql") (not .Values.history.postgresql.secretName) -}}
{{- fail "history.database is postgresql: name the Secret that has its URL in history.postgresql.secretName." -}}
{{- end -}}
{{- end }}

{{/* Refuses times of a Lease with which a part ends at its start. Takes the part's name and its settings. */}}
{{- define "coda.checkLease" -}}
{{- $settings := .settings | default dict -}}
{{- $retry := get $settings "CODA_LEASE_RETRY_S" | default 2 -}}
{{- $renew := get $settings "CODA_LEASE_RENEW_DEADLINE_S" | default 6 -}}
{{- $duration := get $settings "CODA_LEASE_DURATION_S" | default 10 -}}
{{- if not (and (lt (float64 $retry) (float64 $renew)) (lt (float64 $renew) (float64 $duration))) -}}
{{- fail (printf "%s.settings: CODA_LEASE_RETRY_S (%s) must be less than CODA_LEASE_RENEW_DEADLINE_S (%s), and this less than CODA_LEASE_DURATION_S (%s)." .part (toJson $retry) (toJson $renew) (toJson $duration)) -}}
{{- end -}}
{{- end }}

{{/* The tag of Coda's images where a part names none of its own. Takes the root context. */}}
{{- define "coda.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Image and resources of a component's container. Takes a dict of root, component and the tag for an empty one. */}}
{{- define "coda.container" -}}
{{- $values := index .root.Values .component -}}
name: {{ .component }}
image: {{ include "coda.image" (dict "image" $values.image "default" .tag) | quote }}
imagePullPolicy: {{ $values.image.pullPolicy }}
resources:
  {{- toYaml $values.resources | nindent 2 }}
securityContext:
  {{- toYaml .root.Values.securityContext | nindent 2 }}
{{- end }}

{{/* Probes of a part. A replica is ready when it knows the cluster, leading or not. A slow node may take minutes to
start it: only what answered once is killed for being silent. */}}
{{- define "coda.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 300
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 2
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{/* Annotations by which a Prometheus without its operator finds a pod. Takes a dict of root and component. */}}
{{- define "coda.metricsAnnotations" -}}
{{- if .root.Values.metrics.annotations -}}
prometheus.io/scrape: "true"
{{- $values := index .root.Values .component }}
prometheus.io/port: {{ $values.metricsPort | default $values.port | quote }}
prometheus.io/path: /metrics
{{- end }}
{{- end }}

{{/* Environment from a component's settings, by name. Numbers as JSON: Go's own form of 3000000 is 3e+06. */}}
{{- define "coda.settings" -}}
{{- range $name, $value := .settings }}
- name: {{ $name }}
  value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- end }}

{{/* A mode in quotes. Helm reads on and off without quotes as true and false. */}}
{{- define "coda.mode" -}}
{{- if kindIs "bool" . }}{{ ternary "on" "off" . | quote }}{{ else }}{{ . | quote }}{{ end -}}
{{- end }}

{{/* Topology levels as CODA_TOPOLOGY_LEVELS has them. */}}
{{- define "coda.topologyLevels" -}}
{{- $names := list -}}
{{- $levels := list -}}
{{- range .Values.topologyLevels -}}
{{- if has .name $names -}}
{{- fail (printf "topologyLevels: two levels are called %q; give each a name of its own." .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- $levels = append $levels (printf "%s=%s" .name .label) -}}
{{- end -}}
{{- join "," $levels -}}
{{- end }}
