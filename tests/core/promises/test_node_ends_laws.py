"""What is kept about the ends on nodes equals what is worked out from nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cache.world_index import PlannerCache
from coda.history.queue_estimates import ExpectedRuns
from coda.history.run_times import FinishedRun, RunTimes
from coda.model import Job
from coda.model.world import World
from coda.policy import PolicyConfig
from coda.promises.expected_ends import ExpectedEnds
from coda.promises.node_ends import NodeEnds
from tests.builders import job, node, resources, running

NODES = tuple(node(name, gpus=8, cores=64) for name in "abc")
Facts = tuple[str, int, int, tuple[str, ...], float | None, str]
Holders = dict[str, Facts]

HOLDERS = st.dictionaries(
    st.sampled_from(("j1", "j2", "j3")),
    st.tuples(
        st.sampled_from(("ann", "bob")),
        st.integers(1, 2),  # GPUs
        st.integers(1, 2),  # attempts
        st.sampled_from((("a",), ("b",), ("a", "b"), ("c", "c"))),
        st.sampled_from((None, 5000.0)),  # limit
        st.sampled_from(("first", "second")),  # uid
    ),
)
OTHER_RUNS = st.sampled_from(({}, {}, {}, {"attempt": 9}, {"uid": "third"}, {"run_limit_s": 2000.0}))
MOMENTS = st.lists(
    st.tuples(HOLDERS | st.none(), st.sampled_from((0.0, 1.0, 70.0, 1000.0, 9000.0)), st.integers(0, 2), OTHER_RUNS),
    min_size=2,
    max_size=8,
)
"""Who holds what, None: as before; how much time passed; cores that foreign pods use; about which other runs of these
jobs somebody asked, if any."""


def holder(name: str, facts: Facts) -> Job:
    """A running job that holds a rank on each of these nodes."""
    user, gpus, attempt, nodes, limit_s, uid = facts
    one = job(f"team/{name}", gpus=gpus, cores=1, replicas=len(nodes), user=user)
    return running(replace(one, attempt=attempt, run_limit_s=limit_s, uid=uid), *nodes)


@settings(deadline=None)
@given(MOMENTS)
def test_steps_that_are_kept_equal_steps_from_nothing(
    moments: list[tuple[Holders | None, float, int, dict[str, Any]]],
) -> None:
    run_times = RunTimes()
    for run_s in (30.0, 300.0, 900.0, 4000.0):
        run_times.add(FinishedRun("ann", "", 1, run_s))
    config, expected, cache = PolicyConfig(levels=()), ExpectedRuns(run_times), PlannerCache()
    kept_ends, plain_ends = ExpectedEnds(run_times), ExpectedEnds(run_times)
    kept, now_s, jobs = NodeEnds(kept_ends), 1000.0, tuple[Job, ...]()
    for holders, passed_s, cores, asked in moments:
        now_s += passed_s
        if holders is not None:
            jobs = tuple(holder(name, facts) for name, facts in holders.items())
        for ends in (kept_ends, plain_ends):
            for one in jobs if asked else ():
                ends.end_s(replace(one, **asked), now_s)
        used = {"a": resources(cores=cores)}
        index = cache.index_for(World(nodes=NODES, jobs=jobs, used=used), config, expected)
        plain = NodeEnds(plain_ends)
        kept.refresh(index)
        plain.refresh(index)
        for number in range(len(NODES)):
            assert kept.steps(index, number, now_s) == plain.steps(index, number, now_s)
        cache.store(index)
