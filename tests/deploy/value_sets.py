"""Six installations that people make, by name: the values that each sets."""

from __future__ import annotations

VALUE_SETS = {
    "defaults": (),
    "highly available": (
        "history.database=postgresql",
        "history.postgresql.secretName=history",
        "operator.replicas=2",
        "extender.replicas=3",
    ),
    "watched by the Prometheus operator": (
        "metrics.podMonitor.enabled=true",
        "metrics.podMonitor.labels.release=prometheus",
        "metrics.prometheusRule.enabled=true",
        "metrics.dashboards.enabled=true",
        "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=sre",
    ),
    "with agents on a shared pool": (
        "agent.tune=advise",
        "agent.throttle=observe",
        "agent.runtimeClassName=nvidia",
        "agent.sharing=true",
        "pool.mode=shared",
        "cpuJobs.enabled=false",
    ),
    "OpenShift with cert-manager": (
        "certificates.issuer=certManager",
        "podSecurityContext.runAsUser=null",
        "podSecurityContext.runAsGroup=null",
        "imagePullSecrets[0].name=registry",
        "priorityClassName=",
    ),
    "GitOps": (
        "scheduler.image.tag=v1.36.3",
        "policies.action=Deny",
        "policies.poolAccounts[0].kind=Group",
        "policies.poolAccounts[0].name=sre",
        "definitions.upgrade=false",
        "uninstall.enabled=false",
        "metrics.protected=false",
        "metrics.annotations=false",
    ),
}
