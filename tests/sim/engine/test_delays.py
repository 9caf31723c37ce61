"""The simulator books every second of a wait as the operator does: the same history gives the same account."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cycle import decide
from coda.history.delay_causes import DelayCause, delay_cause
from coda.history.time_spent import TimeSpent
from coda.model import Phase
from coda.model.decision import Decision
from coda.model.world import VirtualCluster
from coda.policy import PolicyConfig
from coda_kube.objects.write import pending_json
from coda_operator.view.time_ledger import TimeLedger
from coda_sim.engine.log import RunLog
from coda_sim.engine.simulation import Simulation
from coda_sim.engine.simulation_config import SimulationConfig
from coda_sim.traces import Row
from coda_sim.workload.cluster_shape import shape_from_text
from coda_sim.workload.gangs import Cores, gangs_from_rows
from coda_sim.workload.job_models import JobModelConfig, JobModelDraws
from coda_sim.workload.model_profiles import profile_set
from tests.sim.simulating import simulated as plain
from tests.sim.worlds import row

TENANTS = (VirtualCluster(name="a", gpus=6), VirtualCluster(name="b", gpus=2))


class Live:
    """An operator's ledger beside the simulation: it sees every decision as the statuses that it leads to."""

    def __init__(self) -> None:
        self.ledger = TimeLedger()
        self.status: dict[str, dict[str, object]] = {}

    def decide(self, world: object, config: object, now_s: float, *parts: object, **options: object) -> Decision:
        decision = decide(world, config, now_s, *parts, **options)  # type: ignore[arg-type]
        waiting = {job.id: job for job in world.jobs if job.phase is Phase.QUEUED}  # type: ignore[attr-defined]
        for job in waiting:
            self.tell(job, "Queued", now_s)
        for refusal in decision.refusals:
            pending = pending_json(refusal, since_s=now_s)
            assert pending["cause"] == delay_cause(refusal.reason).value
            self.tell(refusal.job, "Queued", now_s, pending=pending)
        for start in decision.starts:
            self.tell(start.job, "Running", now_s)
        return decision

    def tell(self, job: str, phase: str, now_s: float, **status: object) -> None:
        if self.status.get(job, {}).get("phase") == phase and not status:
            return
        self.status[job] = {"phase": phase, **status}
        self.ledger.see(job, self.status[job], now_s)


def simulated(rows: list[Row], live: Live, cluster: str = "2x4x8", policy: str = "yarn-cs") -> RunLog:
    shape, profiles = shape_from_text(cluster), profile_set("recorded")
    gangs, refused = gangs_from_rows(tuple(rows), shape, Cores())
    assert not refused
    config = SimulationConfig(
        shape=shape,
        profiles=profiles,
        planner=PolicyConfig(policy=policy, levels=()),
        virtual_clusters=TENANTS,
        books_delays=True,
    )
    return Simulation(config, gangs, JobModelDraws(profiles, JobModelConfig(), seed=0), decide=live.decide).run()


JOBS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 200), st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from("ab")),
    min_size=1,
    max_size=14,
)


def rows_of(drawn: list[tuple[int, int, int, str]]) -> list[Row]:
    return [
        replace(row(f"j{number}", submit_s=float(submit_s), duration_s=float(run_s), gpus=gpus), virtual_cluster=tenant)
        for number, (submit_s, run_s, gpus, tenant) in enumerate(drawn)
    ]


@settings(max_examples=40, deadline=None)
@given(JOBS)
def test_simulator_and_operator_book_the_same_of_the_same_history(drawn: list[tuple[int, int, int, str]]) -> None:
    live = Live()
    for entry in simulated(rows_of(drawn), live).entries:
        assert entry.spent is not None
        assert entry.start_s is not None
        assert entry.spent.wait_s == int(entry.start_s) - int(entry.gang.row.submit_s)
        told = live.ledger.of(f"{entry.gang.row.virtual_cluster}/{entry.gang.row.job_id}")
        assert told is not None
        assert told.waits == entry.spent.waits


def test_the_cause_of_a_wait_changes_with_what_others_do() -> None:
    """`a` owns six GPUs: its second job waits for two GPUs on one node, its third is beyond what it owns."""
    rows = rows_of([(0, 100, 3, "b"), (0, 400, 3, "a"), (10, 50, 2, "a"), (150, 60, 8, "a")])
    live = Live()
    found = {entry.gang.row.job_id: entry.spent for entry in simulated(rows, live).entries}
    assert _waits(found["j2"]) == {DelayCause.GPUS: 90}
    assert _waits(found["j3"]) == {DelayCause.FAIR_SHARE: 250}
    assert _waits(found["j0"]) == _waits(found["j1"]) == {}


def _waits(spent: TimeSpent | None) -> dict[DelayCause, int]:
    assert spent is not None
    return dict(spent.waits)


def test_a_run_that_books_nothing_has_no_accounts() -> None:
    log = plain([row("one", gpus=4), row("two", gpus=4)])
    assert [entry.spent for entry in log.entries] == [None, None]
