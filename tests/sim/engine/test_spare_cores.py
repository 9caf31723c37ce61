"""Synergy-TUNE inside a simulation: spare cores go to running jobs, and back when somebody starts."""

import pytest

from coda_sim.engine import Costs
from coda_sim.engine.log import JobEntry
from tests.sim.simulating import only, simulated_under
from tests.sim.worlds import row


def cores_of(entry: JobEntry) -> list[tuple[float, int]]:
    """When it had how many cores, from when on."""
    return [(piece.start_s, piece.cores) for piece in entry.pieces]


def test_spare_cores_are_lent_up_to_the_best_and_taken_back_for_who_starts() -> None:
    # BAT is fastest with 6 cores. A GPU's part of this node is 2; a CPU job takes 5 of the 8 from 100 to 200 s.
    training, other = row("b1", cpus=1, duration_s=3000), row("c1", gpus=0, cpus=5, submit_s=100, duration_s=100)
    log = simulated_under("synergy-tune", [training, other], "1x4x8", traits=only("BAT"))
    first, second = log.entries
    assert cores_of(first) == [(0, 2), (0, 6), (100, 3), (200, 6)]
    assert [(piece.start_s, piece.end_s) for piece in second.pieces] == [(100, 200)]


def test_nobody_is_lent_more_than_it_can_use() -> None:
    log = simulated_under("synergy-tune", [row("t1", cpus=6, duration_s=300)], "1x4x8", traits=only("Transformer"))
    assert cores_of(log.entries[0]) == [(0, 2)]


def test_a_gang_is_lent_the_same_on_all_its_nodes() -> None:
    gang = row("g1", gpus=2, cpus=2, nodes=2, duration_s=1000)
    neighbour = row("n1", gpus=0, cpus=7, duration_s=500)
    log = simulated_under("synergy-tune", [neighbour, gang], "2x1x8", traits=only("BAT"))
    assert {cores for _, cores in cores_of(next(e for e in log.entries if e.gang.gpus))} <= {1, 2}


@pytest.mark.parametrize(
    ("policy", "held"),
    [
        pytest.param("synergy-tune", [(0, 2), (450, 6)], id="lent to only once it is profiled"),
        pytest.param("synergy-tune-oracle", [(0, 2), (0, 6)], id="the bound knows at once"),
    ],
)
def test_a_new_job_is_lent_cores_once_its_profile_is_known(policy: str, held: list[tuple[float, int]]) -> None:
    # BAT is fastest with 6 cores; a GPU's part of this node is 2.
    log = simulated_under(
        policy, [row("b1", cpus=1, duration_s=3000)], "1x4x8", traits=only("BAT"), costs=Costs(profiling_s=450.0)
    )
    (entry,) = log.entries
    assert cores_of(entry) == held


def test_a_profiled_job_gives_back_what_it_cannot_use() -> None:
    # Transformer is fastest with 2 cores; a GPU's part of this node is 8. The CPU job waits for 4 of them.
    rows = [row("t1", cpus=2, duration_s=3000), row("c1", gpus=0, cpus=4, submit_s=100, duration_s=100)]
    log = simulated_under("synergy-tune", rows, "1x1x8", traits=only("Transformer"), costs=Costs(profiling_s=450.0))
    training, other = log.entries
    assert cores_of(training) == [(0, 8), (450, 2)]
    assert other.start_s == 450


def test_proportional_is_the_share_of_the_node_that_the_job_is_on() -> None:
    # Per GPU the large node has 3.5 cores, the small one 7: jobs start with the poorer share.
    rows = [row(f"g{gpus}", gpus=gpus, cpus=1, submit_s=gpus, duration_s=3000) for gpus in (4, 8)]
    log = simulated_under("proportional", rows, "1x8x28,1x4x28", traits=only("BAT"))
    assert [cores_of(entry) for entry in log.entries] == [[(4, 14), (4, 28)], [(8, 28)]]


def test_proportional_takes_what_is_free_of_its_share() -> None:
    # CPU jobs hold 23 cores of the small node, and all of the large one.
    beside, full = row("c1", gpus=0, cpus=23, duration_s=5000), row("c2", gpus=0, cpus=28, submit_s=1, duration_s=5000)
    rows = [beside, full, row("g1", gpus=1, cpus=1, submit_s=2, duration_s=100)]
    log = simulated_under("proportional", rows, "1x8x28,1x4x28", traits=only("BAT"))
    assert cores_of(log.entries[2]) == [(2, 3), (2, 5)]


def test_tuned_cores_in_arrival_order_are_the_allocator_s() -> None:
    # Transformer needs 2 cores; the second job fits beside it only once the search has given the others back.
    log = simulated_under("fifo-skip-tuned", [row("t1", cpus=8, duration_s=3000)], "1x1x8", traits=only("Transformer"))
    asked = simulated_under("fifo-skip", [row("t1", cpus=8, duration_s=3000)], "1x1x8", traits=only("Transformer"))
    assert [piece.cores for piece in asked.entries[0].pieces] == [8]
    assert log.entries[0].pieces[-1].cores == 2
