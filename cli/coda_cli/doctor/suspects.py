"""Which nodes Coda places nothing on, because its GPUs are suspect: as the operator decides it."""

from __future__ import annotations

from collections.abc import Iterator

from coda.correlation.suspect_nodes import CORDON_S, SHARE, NodeEvidence, suspect_nodes
from coda.errors import InvalidInput
from coda.wording import moment_text
from coda_cli.doctor.finding import Finding, Level
from coda_cli.doctor.seen import Seen
from coda_kube.failures.node_failures import NodeFailures
from coda_kube.failures.node_xids import came_s, is_silent, watches_xids, xids_from_json
from coda_kube.objects.names import ANNOTATION_CLEARED, GPU
from coda_kube.objects.quantities import seconds_from_time


def suspect_gpus(seen: Seen) -> Iterator[Finding]:
    """Yield one finding for each cordoned node; none where jobs or nodes cannot be read."""
    if seen.jobs is None or seen.nodes is None:
        return
    known = NodeFailures()
    for job in seen.jobs:
        known.see(job, seen.now_s)
    cleared_s: dict[str, float] = {}
    for node in seen.nodes:
        text = (node["metadata"].get("annotations") or {}).get(ANNOTATION_CLEARED)
        try:
            cleared_s[node["metadata"]["name"]] = seconds_from_time(text)
        except InvalidInput:
            continue
    nodes = sum(1 for node in seen.nodes if GPU in ((node.get("status") or {}).get("allocatable") or {}))
    profiles = seen.profiles or ()
    evidence = NodeEvidence(
        failures=known.all(),
        xids=[one for profile in profiles for one in xids_from_json(profile, came_s(profile, seen.now_s))],
        runs=known.runs(),
        watched=frozenset(
            profile["metadata"]["name"]
            for profile in profiles
            if watches_xids(profile) and not is_silent(profile, seen.now_s)
        ),
        cleared_s=cleared_s,
        created_s={
            node["metadata"]["name"]: seconds_from_time(node["metadata"].get("creationTimestamp"))
            for node in seen.nodes
        },
    )
    share = _setting(seen, "CODA_CORDON_SHARE", SHARE)
    cordon_s = _setting(seen, "CODA_CORDON_S", CORDON_S)
    for cordon in suspect_nodes(evidence, nodes, seen.now_s, share, cordon_s).cordons:
        says = f"nothing is placed on {cordon.node} until {moment_text(cordon.until_s)}: {cordon.why}"
        fix = f"kubectl annotate node {cordon.node} --overwrite {ANNOTATION_CLEARED}=$(date -u +%FT%TZ)"
        yield Finding(Level.BAD, "suspect GPUs", says, f"look at its GPUs; trusted again: {fix}")


def _setting(seen: Seen, name: str, default: float) -> float:
    """What the operator was given, else its default; it does not start with what is no number."""
    try:
        return float(seen.operator_settings[name])
    except (KeyError, ValueError):
        return default
