"""How closely a replay on a local cluster and a simulation of the same jobs agree: order of starts, and waits.

Takes what `coda replay TRACE --local --out replay.json` and `coda simulate --trace TRACE --racks 2 --profiles recorded
--resumable 0 --out DIR` wrote, with equal options for the trace; `coda` is simulated without allocator and eliminator.
A live cluster takes a moment for everything, and at speed 200 a second of it is 200 s of the trace; so the jobs are
also simulated with moments like this replay's, drawn again and again. Prints tables in Markdown; `--jobs` writes start
and wait of every job. Of a slice that begins with running jobs (`slice_of_run.py`), `--after` judges only the others.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from coda.errors import CodaError, InvalidInput
from coda.model import WaitCode
from coda_sim.results.audit import AuditedJob, read_jobs
from rig.agreeing import Start, Starts, agreement, is_near, rounds, swapped_for_certain, waits
from rig.agreeing_measures import measures_table
from rig.agreeing_rounds import Rounds
from rig.asking import positive
from rig.replayed import LiveJob, Replayed, Simulator, replayed_from_json

ROUND_S = 0.02
"""Real seconds: the plans of one scheduling round are committed within it, and the next round begins later."""

WORST = 10
SLOWER = (1, 10, 100)
COLUMNS = (
    "job_id", "gpus", "submit_s", "work_s", "replay_start_s", "simulated_start_s", "replay_wait_s", "simulated_wait_s",
    "drawn_wait_low_s", "drawn_wait_high_s", "replay_round", "simulated_round", "cause",
)  # fmt: skip


def main() -> int:
    """Compare them; the exit code."""
    options = _options()
    try:
        replayed = replayed_from_json(orjson.loads(options.replay.read_bytes()))
        records = read_jobs(options.records)
        simulated = simulated_starts(records, replayed)
        comparison = Comparison(replayed, simulated, options.draws, options.after)
    except (CodaError, OSError, ValueError) as error:
        print(f"agreement: {error}", file=sys.stderr)
        return 1
    print(
        "\n".join(
            [
                *comparison.measures(records),
                "",
                *comparison.table(),
                "",
                *comparison.worst(WORST),
                "",
                *comparison.sensitivity(),
            ]
        )
    )
    if options.jobs is not None:
        with options.jobs.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *comparison.lines()])
    return 0


def simulated_starts(jobs: Sequence[AuditedJob], replayed: Replayed) -> Starts:
    """When they started. Raises InvalidInput unless they are the replay's jobs, and each ran for its recorded time."""
    started = {job.job_id: job for job in jobs if job.pieces}
    for live in replayed.jobs:
        job = started.get(live.job_id)
        if job is None or (job.gpus, job.submit_s, job.work_s) != (live.gpus, live.submit_s, live.work_s):
            raise InvalidInput(f"job {live.job_id} of the replay was not simulated as it is: use the same options")
        if abs(job.spans[-1].end_s - job.spans[-1].start_s - _last_work_s(job)) > 1e-6 * job.work_s:
            raise InvalidInput(f"job {live.job_id} was not simulated for its recorded time: use --profiles recorded")
    return {
        live.job_id: Start(submit_s=live.submit_s, start_s=started[live.job_id].spans[0].start_s)
        for live in replayed.jobs
    }


def _last_work_s(job: AuditedJob) -> float:
    """The work that its last attempt had to do."""
    return job.work_s - sum(piece.done_s for piece in job.spans[:-1] if piece.kept)


class Comparison:
    """A replay beside the simulation of its jobs, and beside those with moments like its own. Judges the jobs that
    were submitted at `after_s` or later."""

    def __init__(self, replayed: Replayed, simulated: Starts, draws: int, after_s: float = 0.0) -> None:
        simulator = Simulator(replayed)
        self._replayed = replayed
        self._draws = draws
        self._jobs = tuple(job for job in replayed.jobs if job.submit_s >= after_s)
        self._live = self._judged(replayed.starts)
        self._simulated = self._judged(simulated)
        self._drawn = [self._judged(one) for one in simulator.starts_of_draws(self._draws)]
        self._any = [self._judged(one) for one in simulator.starts_of_any(self._draws)]
        self._live_rounds = rounds(self._live, ROUND_S * replayed.speed)
        self._rounds = rounds(self._simulated, 0.0)
        self._drawn_rounds = [rounds(one, 0.0) for one in self._drawn]

    def measures(self, records: Sequence[AuditedJob]) -> Iterator[str]:
        """In Markdown: the measures of both sides, and of the simulations with the replay's moments."""
        return measures_table(self._jobs, records, self._drawn)

    def table(self) -> Iterator[str]:
        """In Markdown: what the replay did, the simulation, and the simulations with its moments."""
        yield "| | replay | simulated | difference | simulated with moments like the replay's |"
        yield "|---|---|---|---|---|"
        yield self._row("jobs that waited for room", [self._waited(one) for one in self._all()])
        everybody, either = sorted(self._live), self._waited_on_either_side()
        for name, among in (("all jobs", everybody), ("jobs that waited in either", either)):
            for index, part in enumerate(("p50", "p90")):
                found = [waits(one, among)[index] for one in self._all()]
                yield self._row(f"wait of {name}, {part}, s", found)
        plain = agreement(self._live_rounds, self._rounds)
        drawn = [agreement(self._live_rounds, one) for one in self._drawn_rounds]
        shares = [100 * one.swapped / max(1, one.ordered) for one in drawn]
        drawn_shares = f"{min(shares):.1f} to {max(shares):.1f} %"
        yield f"| pairs started in another order | | {plain.swapped} of {plain.ordered} | | {drawn_shares} |"
        moved = _span([one.moved for one in drawn])
        yield f"| jobs to leave out for the same order | | {plain.moved} of {plain.jobs} | | {moved} |"
        certain, swapped = swapped_for_certain(self._live_rounds, [rounds(one, 0.0) for one in self._any])
        yield f"| pairs whose order no moment changes | {swapped} of {certain} in another | | | |"
        if all(job.gpus and not job.stops for job in self._replayed.jobs):
            alike, of = Rounds(replayed=self._replayed, round_s=ROUND_S).alike()
            yield f"| rounds that `decide` repeats | {alike} of {of} | | | |"
        inside = sum(self._is_drawn(job) for job in self._jobs)
        yield f"| waits that the draws reach | {inside} of {len(everybody)} | | | |"

    def worst(self, count: int) -> Iterator[str]:
        """In Markdown: the jobs whose waits differ most, and why."""
        yield "| job | GPUs | cores | waited, replay, s | simulated, s | drawn, s | why |"
        yield "|---|---|---|---|---|---|---|"
        ordered = sorted(self._jobs, key=lambda job: (-abs(self._off_s(job)), job.job_id))
        for job in ordered[:count]:
            live_s, wait_s = self._live[job.job_id].wait_s, self._simulated[job.job_id].wait_s
            cores = job.gang.cpus_per_replica * job.gang.replicas
            drawn = _span(self._drawn_waits_s(job))
            yield f"| {job.job_id} | {job.gpus} | {cores} | {live_s:.0f} | {wait_s:.0f} | {drawn} | {self.cause(job)} |"

    def sensitivity(self) -> Iterator[str]:
        """In Markdown: what such moments do to the simulation itself, at this speed and where they count for less."""
        yield "| moments as at speed | wait of jobs that waited, p50, s | p90, s | pairs started in another order |"
        yield "|---|---|---|---|"
        among = [job_id for job_id, start in self._simulated.items() if start.wait_s > 0]
        here = [waits(self._simulated, among)[index] for index in (0, 1)]
        yield f"| none | {here[0]:.0f} | {here[1]:.0f} | |"
        for slower in SLOWER:
            slow = replace(self._replayed, speed=self._replayed.speed / slower)
            drawn = [self._judged(one) for one in Simulator(slow).starts_of_draws(self._draws)]
            halves, most = ([waits(one, among)[index] for one in drawn] for index in (0, 1))
            orders = (agreement(self._rounds, rounds(one, 0.0)) for one in drawn)
            swapped = [100 * one.swapped / max(1, one.ordered) for one in orders]
            yield f"| {slow.speed:g} | {_span(halves)} | {_span(most)} | {min(swapped):.1f} to {max(swapped):.1f} % |"

    def lines(self) -> Iterator[tuple[object, ...]]:
        """Every job in order of submission, by `COLUMNS`."""
        for job in sorted(self._jobs, key=lambda job: (job.submit_s, job.job_id)):
            job_id, live, simulated = job.job_id, self._live[job.job_id], self._simulated[job.job_id]
            drawn = self._drawn_waits_s(job)
            times = (live.start_s, simulated.start_s, live.wait_s, simulated.wait_s, min(drawn), max(drawn))
            told = [f"{time:.1f}" for time in (job.submit_s, job.work_s, *times)]
            yield (job_id, job.gpus, *told, self._live_rounds[job_id], self._rounds[job_id], self.cause(job))

    def cause(self, job: LiveJob) -> str:
        """Why its wait differs; empty where it does not by more than 5 % and its own way through the cluster."""
        own_s = (job.lag.queued_s + (job.lag.placed_s or ROUND_S)) * self._replayed.speed
        if is_near(self._live[job.job_id].wait_s, self._simulated[job.job_id].wait_s, slack=own_s):
            return ""
        if job.stops or job.attempts > 1:
            return "stopped" if job.stops else "tried again"
        if WaitCode.HELD_BY_POLICY.value in job.said_why:
            return "nodes kept for others"
        return "moments" if self._is_drawn(job) else "unexplained"

    def _judged(self, starts: Starts) -> Starts:
        return {job.job_id: starts[job.job_id] for job in self._jobs}

    def _all(self) -> tuple[Starts, ...]:
        return (self._live, self._simulated, *self._drawn)

    def _row(self, name: str, values: Sequence[float]) -> str:
        live, simulated, *drawn = values
        share = f"{(live - simulated) / simulated:+.1%}" if simulated else ""
        return f"| {name} | {live:.0f} | {simulated:.0f} | {share} | {_span(drawn)} |"

    def _waited(self, starts: Starts) -> int:
        """How many waited for longer than any job did that never waited for room."""
        placed_s = (job.lag.queued_s + job.lag.placed_s for job in self._jobs if job.lag.placed_s is not None)
        limit_s = max(placed_s, default=0.0) * self._replayed.speed
        return sum(start.wait_s > limit_s for start in starts.values())

    def _waited_on_either_side(self) -> list[str]:
        return [job.job_id for job in self._jobs if job.said_why or self._simulated[job.job_id].wait_s > 0]

    def _off_s(self, job: LiveJob) -> float:
        return self._live[job.job_id].wait_s - self._simulated[job.job_id].wait_s

    def _drawn_waits_s(self, job: LiveJob) -> list[float]:
        return [one[job.job_id].wait_s for one in self._drawn]

    def _is_drawn(self, job: LiveJob) -> bool:
        drawn, wait_s = self._drawn_waits_s(job), self._live[job.job_id].wait_s
        return is_near(wait_s, min(max(wait_s, min(drawn)), max(drawn)), slack=ROUND_S * self._replayed.speed)


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("replay", type=Path, help="what `coda replay --local --out` wrote")
    parser.add_argument("records", type=Path, help="jobs.csv.gz of `coda simulate --out`")
    parser.add_argument("--draws", type=positive, default=30, help="simulations with moments like the replay's (30)")
    parser.add_argument("--after", type=float, default=0.0, help="judge who was submitted then or later, trace s (0)")
    parser.add_argument("--jobs", type=Path, help="file for every job's start and wait, CSV")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
