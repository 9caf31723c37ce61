"""The decision: what starts now, where, and why everything else waits. What must not live here: any single rule."""

from __future__ import annotations

from coda.config import PolicyConfig
from coda.model import Job, Plan, Start, World
from coda.ordering import waiting_jobs
from coda.quotas import QuotaLedger
from coda.refusing import Refuser
from coda.searching import Search


def decide(world: World, config: PolicyConfig, now_s: float) -> Plan:
    """Start every waiting gang that fits whole, in order, and refuse each of the others with its reason.

    `world` must pass `world.check`. Pure: equal arguments, in any order of nodes, jobs and quotas, give equal plans.
    Each waiting job is in `starts` or in `refusals`, once. What does not fit is skipped, so nothing runnable waits
    behind it. Reasons describe the world after all starts: with these committed, deciding again starts nothing and
    refuses alike.
    Cost: O(nodes + jobs log jobs), and O(nodes) for each distinct demand and request among the waiting jobs."""
    search, quotas = Search(world, config), QuotaLedger(world)
    starts: list[Start] = []
    refused: list[Job] = []
    for job in waiting_jobs(world):
        start = _start(job, search, quotas, now_s)
        if start is None:
            refused.append(job)
        else:
            starts.append(start)
    refuser = Refuser(world, starts, search, quotas, config, now_s) if refused else None
    refusals = tuple(refuser.refusal(job) for job in refused) if refuser else ()
    return Plan(starts=tuple(starts), refusals=refusals)


def _start(job: Job, search: Search, quotas: QuotaLedger, now_s: float) -> Start | None:
    if job.edited or job.bound or job.unbound or job.not_before_s > now_s or quotas.shortage(job) is not None:
        return None
    nodes = search.nodes_for(job)
    if nodes is None:
        return None
    quotas.take(job)
    return Start(
        job=job.id,
        attempt=job.attempt,
        generation=job.generation,
        nodes=nodes,
        cpus_per_replica=job.cpus_per_replica,
    )
