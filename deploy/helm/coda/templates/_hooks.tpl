{{/* Annotations of a hook's account, role and files: they exist only while it runs. Takes the hook's name. */}}
{{- define "coda.hook" -}}
helm.sh/hook: {{ . }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
helm.sh/hook-weight: "-1"
{{- end }}

{{/*
The Job of a hook, which runs a program of the operator's image. Takes a dict of root, component, hook, module, environ
(a map) and files (the name of a ConfigMap, mounted at /etc/coda/files; or nothing).
*/}}
{{- define "coda.hookJob" -}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "coda.metadata" . | nindent 2 }}
  annotations:
    helm.sh/hook: {{ .hook }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
    helm.sh/hook-weight: "0"
spec:
  backoffLimit: 3
  template:
    metadata:
      labels:
        {{- include "coda.labels" . | nindent 8 }}
    spec:
      restartPolicy: Never  # so that what a failed one said can be read
      {{- include "coda.podSpec" . | nindent 6 }}
      containers:
        - name: {{ .component }}
          image: {{ include "coda.image" (dict "image" .root.Values.operator.image "default" (include "coda.tag" .root)) | quote }}
          imagePullPolicy: {{ .root.Values.operator.image.pullPolicy }}
          command: [python, -m, {{ .module }}]
          resources:
            {{- toYaml .root.Values.hooks.resources | nindent 12 }}
          securityContext:
            {{- toYaml .root.Values.securityContext | nindent 12 }}
          env:
            - name: CODA_LOG_LEVEL
              value: {{ .root.Values.logLevel }}
            {{- range $name, $value := .environ }}
            - name: {{ $name }}
              value: {{ $value | quote }}
            {{- end }}
          {{- if .files }}
          volumeMounts:
            - {name: files, mountPath: /etc/coda/files, readOnly: true}
      volumes:
        - name: files
          configMap: {name: {{ .files }}}
          {{- end }}
{{- end }}

{{/* The account of a hook and what it may do. Takes a dict of root, component, hook, cluster and inside (rules). */}}
{{- define "coda.hookAccount" -}}
{{- $ := . -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "coda.metadata" . | nindent 2 }}
  annotations:
    {{- include "coda.hook" .hook | nindent 4 }}
{{- range $kind, $rules := dict "ClusterRole" .cluster "Role" .inside }}
{{- if $rules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  {{- if eq $kind "Role" }}
  {{- include "coda.metadata" $ | nindent 2 }}
  {{- else }}
  name: coda-{{ $.component }}
  labels:
    {{- include "coda.labels" $ | nindent 4 }}
  {{- end }}
  annotations:
    {{- include "coda.hook" $.hook | nindent 4 }}
rules:
  {{- toYaml $rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  {{- if eq $kind "Role" }}
  {{- include "coda.metadata" $ | nindent 2 }}
  {{- else }}
  name: coda-{{ $.component }}
  labels:
    {{- include "coda.labels" $ | nindent 4 }}
  {{- end }}
  annotations:
    {{- include "coda.hook" $.hook | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: coda-{{ $.component }}}
subjects:
  - {kind: ServiceAccount, name: coda-{{ $.component }}, namespace: {{ include "coda.namespace" $.root }}}
{{- end }}
{{- end }}
{{- end }}
