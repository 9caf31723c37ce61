"""A gang of one rank per node, each with the windows of its node's agent, and NodeProfiles between them. Fake time.

Wishes are granted at once. Every agent can be killed, be started again, or have its profile kept from others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from coda.allocator import SearchResult, Tuning, TuningConfig, TuningPhase
from coda.allocator.tuning import TuningInput
from coda.errors import Outage
from coda.model import JobId
from coda_agent.cluster import LocalPod, Peers, TunedJob, ranks_json
from coda_agent.tuning.gang import Gang
from coda_agent.tuning.observation import TuningObservation
from coda_agent.tuning.rank_windows import RankWindows
from coda_agent.tuning.windows import Windows
from coda_kube.objects.json_types import Json
from coda_kube.objects.read import GangMember
from tests.core.allocator.searching import granted

CONFIG = TuningConfig()
SETTLE_S = 10.0
GPUS = 2  # per rank
UID = "uid-train"


async def nothing(_node: str) -> Json | None:
    return None


def alone() -> Gang:
    """For jobs of one rank."""
    return Gang("n0", Peers(nothing, lambda: 0.0))


def rank_pod(rank: int, cores: int, attempt: int = 1) -> LocalPod:
    member = GangMember(job=JobId("default/train"), job_uid=UID, attempt=attempt, rank=rank, plan_id="")
    return LocalPod(
        uid=f"pod-{rank}",
        namespace="default",
        name=f"train-{attempt}-{rank}",
        runs=True,
        ended=False,
        gpus=GPUS,
        request_cores=cores,
        limit_cores=cores,
        quality="Guaranteed",
        member=member,
        cores=cores,
        is_tuned=True,
    )


@dataclass(slots=True)
class GangOfNodes:
    """`needs`: cores that keep the GPUs of each rank busy; ranks do not wait for each other. `lag_s`: from a window's
    end to its NodeProfile."""

    needs: tuple[int, ...]
    start: int
    lag_s: int = 2
    most: int = 24
    now_s: float = 0.0
    dead: set[int] = field(default_factory=set)  # ranks whose agent does not run
    away: bool = False  # the API server
    profiles: dict[str, Json] = field(default_factory=dict)
    reads: int = 0
    tried: list[int] = field(default_factory=list)  # cores, by second
    answers: list[Tuning] = field(default_factory=list)  # as written, one after the other
    disturbed_at_s: Callable[[int, float], float | None] = lambda _rank, _now_s: None
    job: TunedJob = field(init=False)
    windows: Windows = field(init=False)
    gang: Gang = field(init=False)
    others: dict[int, RankWindows] = field(init=False)

    def __post_init__(self) -> None:
        ranks = len(self.needs)
        here = TuningInput(attempt=1, cores=self.start, gpus=GPUS, ranks=ranks, most_cores=self.most)
        nodes = tuple(f"n{rank}" for rank in range(ranks))
        self.job = TunedJob(
            namespace="default", name="train", uid=UID, version="1", tuning_input=here, tuning=None, nodes=nodes
        )
        self.restart_first()
        self.others = {rank: RankWindows(CONFIG.tuning, SETTLE_S) for rank in range(1, ranks)}

    def restart_first(self) -> None:
        """The agent of rank 0 starts again."""
        self.gang = Gang("n0", Peers(self._read, lambda: self.now_s))
        self.windows = Windows(CONFIG, SETTLE_S, self.gang, self.most)

    def restart(self, rank: int) -> None:
        """The agent of another rank starts again."""
        self.others[rank] = RankWindows(CONFIG.tuning, SETTLE_S)
        self.dead.discard(rank)

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            for rank, windows in self.others.items():
                if rank not in self.dead:
                    windows.step(rank_pod(rank, self.cores), self._seen(rank))
                    if self.now_s % self.lag_s == 0 and not self.away:
                        self.profiles[f"n{rank}"] = {"status": {"ranks": ranks_json(windows.reports)}}
            self._first()
            self.tried.append(self.cores)
            for _turn in range(3):
                await asyncio.sleep(0)

    async def until(self, *phases: TuningPhase, limit_s: int = 20_000) -> Tuning:
        """Run until the tuning is in one of these phases."""
        for _ in range(limit_s):
            await self.run(1)
            if self.job.tuning is not None and self.job.tuning.phase in phases:
                return self.job.tuning
        raise AssertionError(self.job.tuning)

    @property
    def cores(self) -> int:
        return self.job.tuning_input.cores

    @property
    def found(self) -> SearchResult:
        assert self.job.tuning is not None
        assert isinstance(self.job.tuning.found, SearchResult)
        return self.job.tuning.found

    def _first(self) -> None:
        self.gang.see((), [self.job])
        tuning = self.windows.step(self.job, self._seen(0))
        if tuning is None or tuning == self.job.tuning:
            return
        self.answers.append(tuning)
        self.job = replace(self.job, tuning=tuning)
        if tuning.phase is TuningPhase.WISHING and tuning.wish is not None:
            self.job = replace(self.job, tuning_input=granted(self.job.tuning_input, tuning.wish, self.now_s))

    def _seen(self, rank: int) -> TuningObservation:
        need = self.needs[rank]
        return TuningObservation(
            at_s=self.now_s,
            wall_s=self.now_s,
            container="c",
            share=0.9 * min(1.0, self.cores / need),
            cpu_cores=float(min(self.cores, need)),
            throttled_share=1.0 if self.cores < need else 0.0,
            disturbed_at_s=self.disturbed_at_s(rank, self.now_s),
        )

    async def _read(self, node: str) -> Json | None:
        self.reads += 1
        if self.away:
            raise Outage("the API server is away")
        return self.profiles.get(node)
