"""Run times that the planner is told wrongly."""

from coda.policy import PolicyConfig
from coda_sim.workload.inaccuracy import EXACT, Inaccuracy
from tests.sim.simulating import only, simulated, spans
from tests.sim.worlds import row


def order_of_starts(inaccuracy: Inaccuracy) -> list[str]:
    first = row("a0", gpus=4, cpus=4, duration_s=100)
    waiting = [row(f"a{n}", gpus=4, cpus=4, submit_s=1, duration_s=100 + n) for n in range(1, 9)]
    rows, config = [first, *waiting], PolicyConfig(policy="sjf")
    log = simulated(rows, traits=only("Transformer"), config=config, inaccuracy=inaccuracy)
    found = spans(log)
    assert all(end_s - start_s == 100 + int(job[1:]) for job, ((start_s, end_s),) in found.items())
    return sorted(found, key=lambda job: found[job][0][0])


def test_wrong_run_times_change_the_order_and_no_run_time() -> None:
    assert order_of_starts(EXACT) == [f"a{n}" for n in range(9)]
    assert order_of_starts(Inaccuracy(run_time_error=5)) != [f"a{n}" for n in range(9)]
