{{/* KubeSchedulerConfiguration of Coda's kube-scheduler. */}}
{{- define "coda.schedulerConfiguration" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceName: coda-scheduler
  resourceNamespace: {{ include "coda.namespace" . }}
clientConnection:
  qps: {{ .Values.scheduler.clientQPS }}
  burst: {{ .Values.scheduler.clientBurst }}
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 2  # with 10, a fail-over of the extender would cost 10 s more
profiles:
  - schedulerName: coda
    plugins:
      # No single rank of a gang preempts or is preempted: Coda decides about whole gangs.
      postFilter: {disabled: [{name: DefaultPreemption}]}
extenders:
  - urlPrefix: https://coda-extender.{{ include "coda.namespace" . }}.svc:{{ .Values.extender.port }}
    enableHTTPS: true
    tlsConfig:  # the operator makes and renews these files; they are read again at each handshake
      serverName: coda-extender.{{ include "coda.namespace" . }}.svc
      certFile: /etc/coda/tls/tls.crt
      keyFile: /etc/coda/tls/tls.key
      caFile: /etc/coda/tls/ca.crt
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt  # no rank is ever evicted singly, and nobody for a node that the filter then refuses
    weight: 13  # with less, the in-tree scores (about 1200) would outvote it
    httpTimeout: {{ .Values.scheduler.extenderTimeout }}
    nodeCacheCapable: true
    # Shared: foreign pods must not pass unseen. Tainted: there are none, and Coda's are pinned.
    ignorable: {{ eq .Values.pool.mode "tainted" }}
{{- end }}
