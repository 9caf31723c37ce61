"""Which jobs are tried before they get a gang: what the job says itself, else what its tenant asks for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from coda.model.trial_run import TrialRun
from coda.model.world import VirtualCluster
from coda.tenants.tree import TenantTree

LEAST_GPUS = 2
"""Whose gang has fewer GPUs is its own trial: nothing is saved by another one."""


class TrialRule(NamedTuple):
    """What a tenant says of trials, and of whose gangs. `created`: an RFC 3339 time in UTC, which sorts as text."""

    tenant: str
    created: str
    parent: str = ""
    namespaces: tuple[str, ...] = ()
    from_gpus: int = 0  # gangs of so many GPUs or more are tried; 0: the parent says


def least_gpus_tried(rules: Iterable[TrialRule]) -> dict[str, int]:
    """Return from how many GPUs on the gangs of each namespace are tried; a namespace without a trial is absent.

    A tenant that does not say asks for what the one above it asks for, if that parent counts (`TenantTree`). A
    namespace that two name counts for the older of them (ties: by name). O(tenants x levels + namespaces)."""
    by_age = sorted(rules, key=lambda rule: (rule.created, rule.tenant))
    asked = {rule.tenant: rule.from_gpus for rule in by_age}
    tree = TenantTree([VirtualCluster(name=rule.tenant, parent=rule.parent) for rule in by_age])
    found: dict[str, int] = {}
    for rule in by_age:
        path = tree.path(rule.tenant)
        from_gpus = next((asked[name] for name in reversed(path) if asked.get(name)), 0)
        for namespace in rule.namespaces:
            found.setdefault(namespace, from_gpus)
    return {namespace: from_gpus for namespace, from_gpus in found.items() if from_gpus}


def is_tried_first(*, says: bool | None, gpus: int, trial: TrialRun | None, from_gpus: int) -> bool:
    """True if a job of so many GPUs in all is to have a trial. `says`: what it asks for itself; None: nothing.

    `from_gpus`: as of `least_gpus_tried`, 0 for none. `trial`: the one that it has. A trial that was begun is not given
    up because its tenant asks for none by now."""
    if says is not None:
        return says
    if gpus < LEAST_GPUS:
        return False
    return (trial is not None and trial.is_open) or 0 < from_gpus <= gpus
