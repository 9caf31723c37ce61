{{/*
The pods and DaemonSets that the policies would refuse, as a JSON list of "namespace/name: why". The pods run now; those
that named their node (whoever creates a pod with spec.nodeName manages that field, a scheduler does not) may have
ended: such helpers live for seconds, and their maker makes more. Without a cluster (`helm template`) there are none.
Who created a pod cannot be seen, so an administrator's own pods are listed too. A CPU job that an earlier installation
released has its plan, and runs on: it is not listed.
*/}}
{{- define "coda.refusedPods" -}}
{{- $found := list -}}
{{- $pinned := list -}}
{{- $platform := list "kube-system" "coda-system" -}}
{{- range (lookup "v1" "Namespace" "" "").items -}}
{{- if eq (dig "labels" "coda.scheduler/pool" "" .metadata) "true" -}}
{{- $platform = append $platform .metadata.name -}}
{{- end -}}
{{- end -}}
{{- range (lookup "v1" "Pod" "" "").items -}}
{{- $isPinned := false -}}
{{- range .metadata.managedFields -}}
{{- if hasKey (dig "fieldsV1" "f:spec" dict .) "f:nodeName" -}}{{- $isPinned = true -}}{{- end -}}
{{- end -}}
{{- $hasEnded := has (dig "status" "phase" "" .) (list "Succeeded" "Failed") -}}
{{- if or $isPinned (not $hasEnded) -}}
{{- $controller := dict -}}
{{- range .metadata.ownerReferences -}}
{{- if .controller -}}{{- $controller = . -}}{{- end -}}
{{- end -}}
{{- $group := dig "apiVersion" "" $controller | splitList "/" | first -}}
{{- if not (and (eq $group "coda.scheduler") (eq (dig "kind" "" $controller) "TrainingJob")) -}}
{{- $known := list "coda.scheduler/throttling" "coda.scheduler/opt-in" "coda.scheduler/service" "coda.scheduler/user" -}}
{{- $notes := .metadata.annotations | default dict -}}
{{- $isReleased := and (hasKey $notes "coda.scheduler/plan") (hasKey $notes "coda.scheduler/planned-time") (eq .spec.schedulerName "coda") -}}
{{- if $isReleased -}}
{{- $known = concat $known (list "coda.scheduler/plan" "coda.scheduler/planned-time" "coda.scheduler/queued-time" "coda.scheduler/borrows" "coda.scheduler/reclaimed" "coda.scheduler/waits") -}}
{{- end -}}
{{- $keys := list -}}
{{- range $key, $_ := merge dict (.metadata.labels | default dict) $notes -}}
{{- if and (hasPrefix "coda.scheduler/" $key) (not (has $key $known)) -}}
{{- $keys = append $keys $key -}}
{{- end -}}
{{- end -}}
{{- $tolerates := include "coda.tolerates" .spec.tolerations -}}
{{- $namespace := .metadata.namespace -}}
{{- $repelled := list -}}
{{- range dig "affinity" "podAntiAffinity" "requiredDuringSchedulingIgnoredDuringExecution" list .spec -}}
{{- $reaches := hasKey . "namespaceSelector" -}}
{{- range .namespaces -}}
{{- if ne . $namespace -}}{{- $reaches = true -}}{{- end -}}
{{- end -}}
{{- $isOfJobSets := hasKey (dig "labelSelector" "matchLabels" dict .) "jobset.sigs.k8s.io/job-key" -}}
{{- range dig "labelSelector" "matchExpressions" list . -}}
{{- if and (eq .key "jobset.sigs.k8s.io/job-key") (has .operator (list "Exists" "In")) -}}{{- $isOfJobSets = true -}}{{- end -}}
{{- end -}}
{{- if and $reaches (hasKey . "labelSelector") (not $isOfJobSets) (ne .topologyKey "kubernetes.io/hostname") -}}
{{- $repelled = append $repelled .topologyKey -}}
{{- end -}}
{{- end -}}
{{- $isMirror := hasKey $notes "kubernetes.io/config.mirror" -}}
{{- $isGated := false -}}
{{- range .spec.schedulingGates -}}
{{- if eq .name "coda.scheduler/admission" -}}{{- $isGated = true -}}{{- end -}}
{{- end -}}
{{- $mayTolerate := or $isMirror (and (eq $group "apps") (eq (dig "kind" "" $controller) "DaemonSet")) (has .metadata.namespace $platform) (and $isGated (eq .spec.schedulerName "coda")) $isReleased -}}
{{- if and $keys (not $hasEnded) (ne .metadata.namespace "coda-system") -}}
{{- $found = append $found (printf "%s/%s: has %s" .metadata.namespace .metadata.name (join ", " $keys)) -}}
{{- end -}}
{{- if and $tolerates (not $hasEnded) (not $mayTolerate) -}}
{{- $found = append $found (printf "%s/%s: tolerates the taint coda.scheduler/pool" .metadata.namespace .metadata.name) -}}
{{- end -}}
{{- if and $repelled (not $hasEnded) (not $isMirror) (not (has .metadata.namespace $platform)) -}}
{{- $found = append $found (printf "%s/%s: repels pods of other namespaces by %s" .metadata.namespace .metadata.name (join ", " $repelled)) -}}
{{- end -}}
{{- if and $isPinned (not $isMirror) (not (has .metadata.namespace $platform)) -}}
{{- $pinned = append $pinned . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $pinned -}}
{{- $pool := include "coda.poolNodes" . | fromJsonArray -}}
{{- range $pinned -}}
{{- if has .spec.nodeName $pool -}}
{{- $found = append $found (printf "%s/%s: named the node %s of the pool itself" .metadata.namespace .metadata.name .spec.nodeName) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range include "coda.refusedDaemonSets" $platform | fromJsonArray -}}{{- $found = append $found . -}}{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* Something, if these tolerations let a pod onto tainted nodes of the pool. */}}
{{- define "coda.tolerates" -}}
{{- range . -}}
{{- $everything := and (not .key) (eq (default "" .operator) "Exists") -}}
{{- if and (ne (default "" .effect) "PreferNoSchedule") (or (eq (default "" .key) "coda.scheduler/pool") $everything) -}}
true
{{- end -}}
{{- end -}}
{{- end }}

{{/*
The DaemonSets that tolerate the taint and that a program keeps up to date, as a JSON list of "namespace/name: why".
Their pods pass, but the policies would refuse the program's next change, unless it may use the pool; which account it
has cannot be seen, only its name in managedFields. What kubectl, oc, Helm and Terraform wrote is left out: whoever runs them is an
administrator, or reads the refusal. Takes the list of the platform's namespaces.
*/}}
{{- define "coda.refusedDaemonSets" -}}
{{- $platform := . -}}
{{- $found := list -}}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items -}}
{{- if and (include "coda.tolerates" .spec.template.spec.tolerations) (not (has .metadata.namespace $platform)) -}}
{{- $programs := list -}}
{{- $byHand := false -}}
{{- range .metadata.managedFields -}}
{{- if dig "f:spec" "f:template" "f:spec" dict (.fieldsV1 | default dict) -}}
{{- if regexMatch "^(kubectl.*|oc([.]exe)?|helm[0-9]?([.]exe)?|terraform-provider.*|HashiCorp|Terraform)$" (.manager | default "") -}}
{{- $byHand = true -}}
{{- else -}}
{{- $programs = append $programs .manager -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if or $programs (not $byHand) -}}
{{- $who := $programs | uniq | sortAlpha | join ", " | default "its maker" -}}
{{- $found = append $found (printf "%s/%s: a DaemonSet that tolerates the taint coda.scheduler/pool, when %s changes it" .metadata.namespace .metadata.name $who) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/*
The names of the pool's nodes, as a JSON list: those with its taint. In a shared pool, which has none, and before any node
is tainted these are all nodes with GPUs.
*/}}
{{- define "coda.poolNodes" -}}
{{- $tainted := list -}}
{{- $withGPUs := list -}}
{{- range (lookup "v1" "Node" "" "").items -}}
{{- $name := .metadata.name -}}
{{- range .spec.taints -}}
{{- if eq .key "coda.scheduler/pool" -}}{{- $tainted = append $tainted $name -}}{{- end -}}
{{- end -}}
{{- if ne (dig "status" "allocatable" "nvidia.com/gpu" "0" . | toString) "0" -}}
{{- $withGPUs = append $withGPUs $name -}}
{{- end -}}
{{- end -}}
{{- if or (eq .Values.pool.mode "shared") (not $tainted) -}}
{{- $tainted = concat $tainted $withGPUs -}}
{{- end -}}
{{- toJson $tainted -}}
{{- end }}

{{/*
What the policies do, as JSON: action (Deny or Warn), and refused, what keeps it from being Deny. Once Deny is in
force, only a value takes it back. Without a cluster to look at (`helm template`, GitOps) nobody knows what Deny would
refuse; every cluster has namespaces. Where it is Deny in any case, no pods are listed.
*/}}
{{- define "coda.policies" -}}
{{- $action := .Values.policies.action -}}
{{- $refused := list -}}
{{- if eq $action "auto" -}}
{{- $bound := lookup "admissionregistration.k8s.io/v1" "ValidatingAdmissionPolicyBinding" "" "coda-reserved-keys" -}}
{{- $action = ternary "Deny" "Warn" (has "Deny" (dig "spec" "validationActions" list $bound)) -}}
{{- end -}}
{{- if and (eq $action "Warn") (lookup "v1" "Namespace" "" "").items -}}
{{- $refused = include "coda.refusedPods" . | fromJsonArray -}}
{{- if and (eq .Values.policies.action "auto") (not $refused) -}}{{- $action = "Deny" -}}{{- end -}}
{{- end -}}
{{- dict "action" $action "refused" $refused | toJson -}}
{{- end }}

{{/* Deny or Warn. */}}
{{- define "coda.policyAction" -}}
{{- if eq .Values.policies.action "auto" -}}
{{- (include "coda.policies" . | fromJson).action -}}
{{- else -}}
{{- .Values.policies.action -}}
{{- end -}}
{{- end }}

{{/* Whether pods of namespaces that opt in become CPU jobs: where the API server can do it, or as the value says. */}}
{{- define "coda.cpuJobs" -}}
{{- $isServed := .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
{{- ternary $isServed (eq (toString .Values.cpuJobs.enabled) "true") (eq (toString .Values.cpuJobs.enabled) "auto") -}}
{{- end }}
