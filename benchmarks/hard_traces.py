"""Where Coda's policies lose: families of traces that were made to hurt them, each simulated under several policies.

    python benchmarks/hard_traces.py [--family NAME ...] [--seed N ...] [--policy NAME ...] [--profiles NAME]

The families are those of `rig/families.py`. Run times are as recorded: no policy makes a job faster. The rule is that
of docs/results.md: coda is first, or within 3 % or (waits) 30 s of the best policy that knows no more; arrival is
within 1 % or 30 s of fifo-skip. Waits count jobs that ran; those that never ran are rows of their own. This is no part
of `make bench`: all families take a minute and a half for each seed. docs/decisions/0146 has figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from coda.errors import InvalidInput
from coda_cli.simulate.verdict import BOUNDS, SAME
from coda_sim.runs import RunOrder, check, run_order
from coda_sim.workload import WorkloadSource
from rig.asking import ask, positive, tell
from rig.families import FAMILIES, Family, write_trace
from rig.results import Answer, Row

CODA: Final = "coda"
ARRIVAL: Final = "arrival"
FIFO: Final = "fifo-skip"
RIVALS: Final = (
    "tiresias-las",
    "drf",
    "fgd",
    "fifo-skip-easy",
    "yarn-cs-preempt",
    "k8s-default",
    "synergy-tune",
)
"""Each is the best of all that know no more than coda on at least one of the traces."""
POLICIES: Final = (CODA, ARRIVAL, FIFO, *RIVALS)
SEEDS: Final = (1, 2, 3, 4)
QUICK: Final = ("allcpu", "gangs")
QUICK_POLICIES: Final = (CODA, ARRIVAL, FIFO)
MEASURES: Final = {
    "gpu_wait_mean_s": "mean GPU wait",
    "gpu_jct_mean_s": "mean GPU JCT",
    "cpu_wait_mean_s": "mean CPU wait",
}
ARRIVAL_SAME: Final = 0.01  # relative, of fifo-skip
MOMENT_S: Final = 30.0  # of a wait

Means = Mapping[str, float]
"""One measure by policy."""


class Judged(NamedTuple):
    """How far a policy is behind the one that it is measured against, in percent; 0: it keeps the rule."""

    policy: str
    against: str
    behind: float
    most: float


async def answer(options: argparse.Namespace) -> Answer:
    """Simulate every family that was asked for on every seed, and judge it."""
    rows: list[Row] = []
    detail: dict[str, dict[str, Means]] = {}
    families = options.family or (QUICK if options.quick else tuple(FAMILIES))
    seeds = options.seed or (SEEDS[:1] if options.quick else SEEDS)
    policies = options.policy or (QUICK_POLICIES if options.quick else POLICIES)
    _check(families, policies)
    for name in families:
        for seed in seeds:
            found = measured(FAMILIES[name], seed, policies, options.profiles)
            rows += rows_of(f"{name} {seed}", found)
            detail[f"{name} {seed}"] = found
    return Answer(question="hard_traces", rows=tuple(rows), detail=detail)


def measured(family: Family, seed: int, policies: Sequence[str], profiles: str) -> dict[str, Means]:
    """Return each measure that the trace has, and `refused`, by policy."""
    found: dict[str, dict[str, float]] = {}
    with TemporaryDirectory(prefix="coda-hard-traces-") as folder:
        trace = Path(folder) / "trace.csv"
        write_trace(family.trace(seed), trace)
        for policy in policies:
            metrics = run_order(_order(trace, family, seed, policy, profiles)).result.metrics
            for key in MEASURES:
                if (value := metrics[key]) is not None:
                    found.setdefault(key, {})[policy] = value
            if refused := metrics["jobs_refused"]:
                found.setdefault("refused", {})[policy] = refused
    return {**found}


def _order(trace: Path, family: Family, seed: int, policy: str, profiles: str) -> RunOrder:
    return RunOrder(
        source=WorkloadSource(trace=trace),
        cluster=family.cluster,
        profiles=profiles,
        policy=policy,
        seed=seed,
        tenants=family.tenants,
    )


def rows_of(title: str, found: Mapping[str, Means]) -> Iterator[Row]:
    """Yield the means of every policy, and what the rule says of coda and arrival; tell each measure in a line."""
    for key, name in MEASURES.items():
        if key not in found:
            continue
        means = found[key]
        said = [f"{policy} {value:.0f}" for policy, value in means.items()]
        for policy, value in means.items():
            yield Row(name=f"{title}: {name}, {policy}", value=value, unit="s")
        for one in judged(means, is_wait="wait" in key):
            bound = f"<= {100 * one.most:g}"
            yield Row(
                name=f"{title}: {name}, {one.policy} behind {one.against}", value=one.behind, unit="%", budget=bound
            )
            said += (
                [f"BROKEN: {one.policy} {one.behind:.0f} % behind {one.against}"] if one.behind > 100 * one.most else []
            )
        tell(f"{title}: {name}, s: {', '.join(said)}")
    for policy, jobs in found.get("refused", {}).items():
        yield Row(name=f"{title}: jobs that never ran, {policy}", value=jobs, unit="", budget="<= 0")
        tell(f"{title}: {policy} never ran {jobs:.0f} jobs")


def judged(means: Means, *, is_wait: bool) -> Iterator[Judged]:
    """Yield what the rule says of coda and of arrival, as far as they and their rivals were simulated."""
    rivals = {policy: mean for policy, mean in means.items() if policy not in BOUNDS | {CODA, ARRIVAL}}
    if CODA in means and rivals:
        best = min(rivals, key=lambda policy: (rivals[policy], policy))
        yield Judged(CODA, best, _behind(means[CODA], rivals[best], is_wait=is_wait), SAME)
    if ARRIVAL in means and FIFO in means:
        yield Judged(ARRIVAL, FIFO, _behind(means[ARRIVAL], means[FIFO], is_wait=is_wait), ARRIVAL_SAME)


def _behind(own_s: float, best_s: float, *, is_wait: bool) -> float:
    """In percent, of a second at least: a wait of 40 s is no small part of none."""
    if is_wait and own_s - best_s <= MOMENT_S:
        return 0.0
    return max(0.0, 100 * (own_s - best_s) / max(1.0, best_s))


def _check(families: Sequence[str], policies: Sequence[str]) -> None:
    for name in families:
        if name not in FAMILIES:
            raise InvalidInput(f"there is no family {name!r}: choose of {', '.join(FAMILIES)}")
    for policy in policies:
        check(_order(Path(), FAMILIES["four"], 1, policy, "recorded"))


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--family", action="append", help="(repeatable; default all)")
    parser.add_argument("--seed", action="append", type=positive, help="(repeatable; default 1 to 4)")
    parser.add_argument("--policy", action="append", help=f"(repeatable; default {', '.join(POLICIES)})")
    parser.add_argument("--profiles", default="recorded", help="how speed depends on cores (default recorded)")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer, more=_more))
