from typing import Any

import pytest

from agreement import Comparison, simulated_starts
from coda.errors import InvalidInput
from coda_sim.results.audit import AuditedJob, AuditedPiece
from rig.agreeing import Agreement, Start, agreement, is_near, rounds, swapped_for_certain, waits
from rig.agreeing_measures import measures_table
from rig.agreeing_rounds import Rounds
from rig.replayed import Replayed, Simulator, replayed_from_json

SPEED = 100.0


def starts(**start_s: float) -> dict[str, Start]:
    return {name: Start(submit_s=0.0, start_s=moment_s) for name, moment_s in start_s.items()}


def job(
    name: str,
    *,
    gpus: int = 8,
    sent_s: float = 0.0,
    work_s: float = 1000.0,
    queued: float = 0.01,
    placed: float = 0.02,
    freed: float | None = None,
    codes: tuple[str, ...] = (),
    **fields: Any,
) -> dict[str, Any]:
    """A job in a replay's JSON. Moments in real seconds after the job was sent; `freed`: without overhead if absent."""
    freed = placed + work_s / SPEED if freed is None else freed
    moments = {"queued_s": queued, "placed_s": placed, "started_s": placed, "freed_s": freed, "finished_s": freed}
    return {
        "name": name,
        "job_id": name.upper(),
        "line": 2,
        "outcome": "finished",
        "kind": "gpu" if gpus else "cpu",
        "namespace": "default",
        "stops": 0,
        "waited_again_s": 0.0,
        "replicas": 1,
        "gpus": gpus,
        "cpus_per_replica": 4,
        "run_s": work_s / SPEED,
        "submitted_s": sent_s,
        "lag_s": 0.0,
        "nodes": ["node-0000"],
        "attempts": 1,
        "reasons": [{"code": code} for code in codes],
        "trace": {"submit_s": sent_s * SPEED, "work_s": work_s},
        "reported": {name: sent_s + moment for name, moment in moments.items()},
        **fields,
    }


def replayed(*jobs: dict[str, Any], **fields: Any) -> Replayed:
    written = {
        "cluster": "1x8x48",
        "racks": 1,
        "costs": "paid",
        "speed": SPEED,
        "runs": [{"policy": "arrival"}],
        "jobs": list(jobs),
        **fields,
    }
    return replayed_from_json(written)


TWO = (job("a"), job("b", sent_s=1.0, placed=9.1, codes=("InsufficientGPUs",)))
"""One node: b waits for the end of a, 10 s after the start, and starts a tenth of a second after it."""


def audited(live: Replayed, *, late_s: float = 0.0, work: float = 1.0) -> list[AuditedJob]:
    """The records of a simulation that starts everything when the replay did."""
    found = []
    for one in live.jobs:
        start_s = one.start_s + late_s
        piece = AuditedPiece(start_s=start_s, end_s=start_s + one.work_s * work, done_s=one.work_s, kept=True)
        made = AuditedJob(one.job_id, "gpu", one.submit_s, one.work_s, one.gpus, True, {1: piece})
        found.append(made)
    return found


def test_starts_one_soon_after_the_other_are_of_one_round() -> None:
    assert rounds(starts(a=1.0, b=1.01, c=1.02, d=1.1), 0.015) == {"a": 0, "b": 0, "c": 0, "d": 1}
    assert rounds(starts(b=2.0, a=2.0, c=1.0), 0.0) == {"c": 0, "a": 1, "b": 1}
    assert rounds({}, 0.0) == {}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        pytest.param((0, 1, 2), (0, 1, 2), Agreement(jobs=3, ordered=3, swapped=0, moved=0), id="the same"),
        pytest.param((0, 1, 2), (5, 7, 9), Agreement(jobs=3, ordered=3, swapped=0, moved=0), id="other numbers"),
        pytest.param((0, 1, 2), (2, 1, 0), Agreement(jobs=3, ordered=3, swapped=3, moved=2), id="turned round"),
        pytest.param((0, 1, 2), (1, 2, 0), Agreement(jobs=3, ordered=3, swapped=2, moved=1), id="one is moved"),
        pytest.param((0, 0, 1), (1, 0, 2), Agreement(jobs=3, ordered=2, swapped=0, moved=0), id="ties here"),
        pytest.param((0, 1, 2), (0, 0, 0), Agreement(jobs=3, ordered=0, swapped=0, moved=0), id="all are ties there"),
    ],
)
def test_orders_differ_by_pairs_and_by_jobs(one: tuple[int, ...], other: tuple[int, ...], expected: Agreement) -> None:
    assert agreement(dict(zip("abc", one, strict=True)), dict(zip("abc", other, strict=True))) == expected


def test_only_pairs_that_all_runs_order_alike_count_as_certain() -> None:
    runs = [{"a": 0, "b": 1, "c": 2}, {"a": 0, "b": 2, "c": 1}]
    assert swapped_for_certain({"a": 0, "b": 1, "c": 2}, runs) == (2, 0)
    assert swapped_for_certain({"a": 1, "b": 0, "c": 2}, runs) == (2, 1)
    assert swapped_for_certain({"a": 0, "b": 0, "c": 0}, runs) == (2, 0)


def test_waits_are_compared_to_five_percent() -> None:
    assert waits(starts(a=0.0, b=100.0, c=200.0), ("a", "b", "c")) == pytest.approx((100.0, 180.0))
    assert waits(starts(a=0.0), ()) == (0.0, 0.0)
    assert is_near(105.0, 100.0)
    assert not is_near(106.0, 100.0)
    assert is_near(106.0, 100.0, slack=1.0)


def test_a_replayed_job_starts_when_it_was_placed_and_what_it_took_is_told_apart() -> None:
    first, second = replayed(*TWO).jobs
    assert (first.start_s, second.start_s) == pytest.approx((2.0, 1010.0))
    assert first.lag.queued_s == pytest.approx(0.01)
    assert first.lag.placed_s == pytest.approx(0.01)
    assert second.lag.placed_s is None  # it waited for room
    (held,) = replayed(job("a", freed=10.5)).jobs
    assert held.lag.held_s == pytest.approx(0.48)


def test_jobs_that_did_not_run_are_left_out_and_other_clusters_refused() -> None:
    assert [one.name for one in replayed(job("a"), job("b", outcome="refused", reported={})).jobs] == ["a"]
    with pytest.raises(InvalidInput, match="no replay on a local cluster"):
        replayed(job("a"), racks=None)


def test_simulates_the_replay_s_jobs_without_any_moment_and_with_moments_like_its_own() -> None:
    simulator = Simulator(replayed(*TWO))
    assert {job_id: start.start_s for job_id, start in simulator.starts().items()} == {"A": 0.0, "B": 1000.0}
    drawn = simulator.starts_of_draws(5)
    assert drawn == simulator.starts_of_draws(5)
    assert all(one["A"].wait_s > 0 and one["B"].start_s > 1000 for one in drawn)
    assert simulator.starts_of_any(2)[0] == simulator.starts()


def test_moments_that_may_turn_an_order_round_make_it_a_tie() -> None:
    """b needs both halves of the node; c comes 0.1 s before the second one is free."""
    halves = (job("a", gpus=4), job("d", gpus=4, work_s=1020.0), job("b", sent_s=1.0, codes=("InsufficientGPUs",)))
    quick = replayed(*halves, job("c", gpus=4, sent_s=10.1))
    slow = replayed(*halves, job("c", gpus=4, sent_s=10.1, queued=0.5, placed=0.51))
    orders = [rounds(one, 0.0) for one in Simulator(quick).starts_of_any(30)]
    assert swapped_for_certain(orders[0], orders)[0] == 5  # a and d are ties
    orders = [rounds(one, 0.0) for one in Simulator(slow).starts_of_any(30)]
    assert swapped_for_certain(orders[0], orders)[0] == 4  # b and c change places


def test_jobs_queue_in_the_order_in_which_they_are_sent_whatever_the_moments() -> None:
    live = replayed(*TWO, job("c", sent_s=1.1, placed=19.0, queued=0.5, codes=("InsufficientGPUs",)))
    assert all(one["B"].start_s < one["C"].start_s for one in Simulator(live).starts_of_any(30))


def alike(live: Replayed) -> tuple[int, int]:
    return Rounds(replayed=live, round_s=0.02).alike()


def test_a_round_is_repeated_unless_it_decided_otherwise() -> None:
    """c overtakes b, that waits for the same room."""
    ends = job("a", freed=10.5)
    assert alike(replayed(ends, job("b", sent_s=1.0, placed=9.8, codes=("InsufficientGPUs",)))) == (2, 2)
    overtaken = job("b", sent_s=1.0, placed=19.9, codes=("InsufficientGPUs",))
    assert alike(replayed(ends, overtaken, job("c", sent_s=1.1, placed=9.7, codes=("InsufficientGPUs",)))) == (2, 3)


def test_a_round_knows_who_runs_and_who_has_ended() -> None:
    """Two nodes, and one user has one of them. Under `coda` another user goes first then, though it came later."""
    codes = ("InsufficientGPUs",)
    ends, runs = job("a", freed=10.5, namespace="other"), job("r", nodes=["node-0001"], work_s=9000.0, namespace="mine")
    first = job("b", sent_s=1.0, placed=20.8, codes=codes, namespace="mine")
    second = job("c", sent_s=1.1, placed=10.6, codes=codes, namespace="third")
    two = {"cluster": "2x8x48"}
    assert alike(replayed(ends, runs, first, second, runs=[{"policy": "coda"}], **two)) == (3, 3)
    assert alike(replayed(ends, runs, first, second, **two)) == (2, 3)


def test_a_round_that_started_a_job_on_another_node_is_not_repeated() -> None:
    two = {"cluster": "2x8x48"}
    assert alike(replayed(job("a"), **two)) == (1, 1)
    assert alike(replayed(job("a", nodes=["node-0001"]), **two)) == (0, 1)


@pytest.mark.parametrize(
    ("placed", "repeated"),
    [
        pytest.param(9.8, 2, id="well after the room was free"),
        pytest.param(9.51, 2, id="the planner saw the end before the replay did"),
        pytest.param(9.3, 1, id="before the room was free"),
    ],
)
def test_what_was_seen_just_around_a_decision_is_left_open(placed: float, repeated: int) -> None:
    live = replayed(job("a", freed=10.52), job("b", sent_s=1.0, placed=placed, codes=("InsufficientGPUs",)))
    assert alike(live) == (repeated, 2)


def test_records_of_other_jobs_or_other_run_times_are_refused() -> None:
    live = replayed(*TWO)
    assert simulated_starts(audited(live), live) == live.starts
    with pytest.raises(InvalidInput, match="job B of the replay was not simulated as it is"):
        simulated_starts(audited(live)[:1], live)
    with pytest.raises(InvalidInput, match="job A was not simulated for its recorded time: use --profiles recorded"):
        simulated_starts(audited(live, work=1.3), live)


def test_the_table_says_how_far_waits_and_order_agree() -> None:
    live = replayed(*TWO)
    lines = list(Comparison(live, simulated_starts(audited(live), live), 5).table())
    assert {line.count("|") for line in lines} == {6}
    assert "| wait of all jobs, p90, s | 819 | 819 | +0.0% |" in "\n".join(lines)
    assert "| pairs started in another order | | 0 of 1 | | 0.0 to 0.0 % |" in lines
    assert "| pairs whose order no moment changes | 0 of 1 in another | | | |" in lines
    assert "| rounds that `decide` repeats | 2 of 2 | | | |" in lines


def test_slower_replays_are_simulated_with_moments_that_count_for_less() -> None:
    live = replayed(*TWO)
    none, *slower = list(Comparison(live, Simulator(live).starts(), 5).sensitivity())[2:]
    assert none == "| none | 900 | 900 | |"
    assert [line.split(" | ")[0] for line in slower] == ["| 100", "| 10", "| 1"]
    assert slower[-1] == "| 1 | 900 to 900 | 900 to 900 | 0.0 to 0.0 % |"


@pytest.mark.parametrize(
    ("second", "cause"),
    [
        pytest.param({}, "", id="it waits as long as simulated"),
        pytest.param({"placed": 12.0}, "unexplained", id="nothing the cluster did takes so long"),
        pytest.param({"placed": 9.5, "attempts": 2}, "tried again", id="it failed to start once"),
        pytest.param({"placed": 99.0, "codes": ("HeldByPolicy",)}, "nodes kept for others", id="a reservation"),
    ],
)
def test_every_difference_has_a_cause(second: dict[str, Any], cause: str) -> None:
    live = replayed(job("a"), job("b", **{"sent_s": 1.0, "placed": 9.1, "codes": ("InsufficientGPUs",), **second}))
    comparison = Comparison(live, Simulator(live).starts(), 5)
    assert comparison.cause(live.job_by_id["B"]) == cause
    assert [line[0] for line in comparison.lines()] == ["A", "B"]


def test_a_longer_wait_by_what_jobs_ahead_took_is_explained_by_moments() -> None:
    ahead = job("a", freed=13.0)
    live = replayed(ahead, job("b", sent_s=1.0, placed=12.1, codes=("InsufficientGPUs",)))
    assert Comparison(live, Simulator(live).starts(), 30).cause(live.job_by_id["B"]) == "moments"


def test_measures_are_of_each_kind_and_count_waits_after_stops() -> None:
    live = replayed(job("a"), job("b", gpus=0, stops=1, waited_again_s=2.0))
    records = audited(live)
    records[1].pieces = {
        1: AuditedPiece(start_s=2.0, end_s=500.0, done_s=498.0, kept=False),
        2: AuditedPiece(start_s=600.0, end_s=1600.0, done_s=1000.0, kept=True),
    }
    assert simulated_starts(records, live)["B"].start_s == 2.0
    assert list(measures_table(live.jobs, records))[-3:] == [
        "| `cpu_wait_mean_s` | 202 | 102 | +100 (+98.0%) | no | |",
        "| `cpu_wait_p90_s` | 202 | 102 | +100 (+98.0%) | no | |",
        "| `aborts` | 1 | 1 | +0 | | |",
    ]


def test_measures_are_of_those_who_are_judged_and_say_what_moments_do() -> None:
    live = replayed(job("a"), job("b", sent_s=1.0, placed=9.1, codes=("InsufficientGPUs",)))
    simulated = Simulator(live).starts()
    later = Comparison(live, simulated, 5, after_s=1.0)
    assert [line[0] for line in later.lines()] == ["B"]
    assert next(later.table()).startswith("| | replay")
    table = list(later.measures(audited(live)))
    low_s, high_s = table[6].split(" | ")[-1].removesuffix(" |").split(" to ")
    waits_s = [one["B"].wait_s for one in Simulator(live).starts_of_draws(5)]
    assert [float(low_s), float(high_s)] == pytest.approx([min(waits_s), max(waits_s)], abs=0.5)


def test_cpu_jobs_borrow_and_begin_again_when_the_replay_is_simulated() -> None:
    """One node of 8 GPUs and 48 cores, of which the CPU array owns 16: c borrows, and g takes the cores back."""
    borrower = job("c", gpus=0, cpus_per_replica=40, work_s=5000.0)
    gang = job("g", sent_s=5.0, cpus_per_replica=30)
    live = replayed(borrower, gang, runs=[{"policy": "coda"}])
    assert {name: start.start_s for name, start in Simulator(live).starts().items()} == {"C": 0.0, "G": 500.0}
