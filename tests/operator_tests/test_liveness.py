"""A leader that hangs fails its probe; one that waits, or has nothing to do, does not."""

from __future__ import annotations

from coda_operator.liveness import HANG_S, Liveness
from coda_operator.view import ClusterView
from tests.operator_tests.fake_cluster import JOBS, FakeCluster, clock


class Process:
    """What one replica knows of itself."""

    def __init__(self) -> None:
        self.now_s, self.leads, self.busy, self.progress = 1000.0, True, False, 0
        self.unheard_s: float | None = None
        self.liveness = Liveness(
            lambda: self.leads,
            lambda: self.busy,
            lambda: self.progress,
            lambda: self.unheard_s,
            clock=lambda: self.now_s,
        )
        self.liveness.set_term(works=True)

    def lives_after(self, seconds: float) -> bool:
        self.now_s += seconds
        return self.liveness.is_alive()


def test_a_leader_without_work_lives() -> None:
    assert Process().lives_after(10 * HANG_S)


def test_work_that_goes_on_lives_and_work_that_hangs_does_not() -> None:
    process = Process()
    process.busy = True
    for _ in range(10):
        process.progress += 1
        assert process.lives_after(HANG_S / 2)
    assert not process.lives_after(HANG_S + 1)


def test_a_term_that_does_not_begin_hangs() -> None:
    process = Process()
    process.liveness.set_term(works=False)
    assert process.lives_after(HANG_S - 1)
    assert not process.lives_after(HANG_S + 1)


def test_a_replica_that_waits_for_the_lease_lives() -> None:
    process = Process()
    process.liveness.set_term(works=False)
    process.leads, process.busy = False, True
    assert process.lives_after(10 * HANG_S)


def test_a_leader_that_kopf_tells_nothing_hangs() -> None:
    process = Process()
    process.unheard_s = process.now_s
    assert process.lives_after(HANG_S - 1)
    assert not process.lives_after(2)
    process.leads = False
    assert process.lives_after(1)


async def test_what_kopf_should_tell_is_what_was_written() -> None:
    api = FakeCluster()
    cluster = ClusterView(api, lambda key: None, lambda key: None, clock=clock)
    job = api.item(api.submit())
    assert cluster.unheard_since_s() is None
    cluster.put_written(job)
    assert cluster.unheard_since_s() is not None
    cluster.apply_job_event("MODIFIED", job)
    assert cluster.unheard_since_s() is None
    cluster.put_written(job)
    assert cluster.unheard_since_s() is None, "nothing changed, or kopf was faster"
    cluster.put_written(api.change(f"{JOBS}/job", lambda item: item["metadata"].update(labels={"a": "b"})))
    assert cluster.unheard_since_s() is not None
    cluster.forget_jobs()
    assert cluster.unheard_since_s() is None
