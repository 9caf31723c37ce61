"""The allocator inside a simulation: windows of 90 s, one core after the other, and what owners' later jobs learn."""

from coda_sim.engine.log import JobEntry
from coda_sim.workload.inaccuracy import Inaccuracy
from tests.sim.simulating import only, simulated, spans
from tests.sim.worlds import row


def cores_of(entry: JobEntry) -> list[int]:
    return [piece.cores for piece in entry.pieces]


def test_a_job_is_tuned_in_windows_of_90_seconds() -> None:
    # DeepSpeech is best with 4 cores; speech starts at 5: 5 is measured, then 4, then 3, which is worse.
    log = simulated([row("a1", gpus=1, cpus=1, duration_s=1000)], "1x4x24", traits=only("DeepSpeech"), allocator=True)
    (entry,) = log.entries
    assert cores_of(entry) == [5, 4, 3, 4]
    assert [start_s for start_s, _ in spans(log)["a1"]] == [0, 90, 180, 270]
    assert entry.tuning_steps == 3
    assert entry.end_s is not None
    assert entry.end_s < 1000  # it asked for one core, with which it would have taken 1000 s


def test_an_owners_next_job_begins_where_the_last_one_ended() -> None:
    rows = [row("a1", cpus=1, duration_s=3000), row("a2", cpus=1, submit_s=5000, duration_s=3000)]
    log = simulated(rows, "1x4x24", traits=only("Wavenet"), allocator=True)
    assert [cores_of(entry)[-1] for entry in log.entries] == [5, 5]
    other = simulated([rows[0], row("a2", user="u2", submit_s=5000)], "1x4x24", traits=only("BAT"), allocator=True)
    assert [cores_of(entry)[0] for entry in other.entries] == [5, 5]
    same = simulated([rows[0], row("a2", submit_s=9000)], "1x4x24", traits=only("BAT"), allocator=True)
    assert [cores_of(entry)[0] for entry in same.entries] == [5, 6]


def test_a_search_ends_where_the_node_has_no_more_cores() -> None:
    neighbour = row("a2", gpus=0, cpus=3, duration_s=5000)
    log = simulated([row("a1", cpus=1, duration_s=3000), neighbour], "1x4x8", traits=only("BAT"), allocator=True)
    assert max(cores_of(log.entries[0])) == 5  # BAT would like 6
    assert log.entries[0].end_s is not None


def test_cores_given_back_let_others_start() -> None:
    waiting = row("a2", gpus=0, cpus=4, submit_s=1, duration_s=10)
    log = simulated([row("a1", cpus=5, duration_s=3000), waiting], "1x1x8", traits=only("DeepSpeech"), allocator=True)
    assert spans(log)["a2"] == [(90, 100)]


def test_fewer_cores_take_no_cycle_of_the_planner() -> None:
    log = simulated([row("a1", cpus=1, duration_s=1000)], "1x4x24", traits=only("DeepSpeech"), allocator=True)
    assert cores_of(log.entries[0]) == [5, 4, 3, 4]
    assert log.cycles == 2  # its start, and the one core more at the end


def test_a_job_that_ends_within_its_first_window_is_as_fast_as_its_start_point() -> None:
    log = simulated([row("a1", cpus=4, duration_s=50)], "1x4x24", traits=only("DeepSpeech"), allocator=True)
    assert cores_of(log.entries[0]) == [5]
    assert log.entries[0].tuning_steps == 0


def test_no_gang_is_given_more_cores_than_the_cluster_could_hold_it_with() -> None:
    gang = row("a1", gpus=8, cpus=8, nodes=2, duration_s=500)
    log = simulated([gang], "1x8x28", traits=only("Wavenet"), allocator=True)
    assert log.entries[0].end_s is not None
    assert cores_of(log.entries[0])[0] == 14


def test_without_history_an_owners_next_job_begins_at_the_start_point_again() -> None:
    rows = [row("a1", cpus=1, duration_s=3000), row("a2", cpus=1, submit_s=9000)]
    log = simulated(rows, "1x4x24", traits=only("BAT"), allocator=True, inaccuracy=Inaccuracy(forgets=True))
    assert [cores_of(entry)[0] for entry in log.entries] == [5, 5]  # 6 with history


def test_noise_in_the_readings_changes_what_searches_find() -> None:
    rows = [row(f"a{n}", cpus=1, submit_s=10_000 * n, duration_s=5000, user=f"u{n}") for n in range(12)]

    def found(noise: float) -> list[int]:
        log = simulated(
            rows, "1x4x16", traits=only("Wavenet"), allocator=True, inaccuracy=Inaccuracy(reading_noise=noise)
        )
        return [cores_of(entry)[-1] for entry in log.entries]

    assert set(found(0)) == {5}
    assert found(0.5) == found(0.5)
    assert set(found(0.5)) != {5}
