"""Synergy-TUNE inside a simulation: spare cores go to running jobs, and back when somebody starts."""

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
