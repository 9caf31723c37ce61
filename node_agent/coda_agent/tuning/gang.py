"""What the other ranks of this node's jobs reported, and which of it belongs to the present window of rank 0.

A report belongs to it if it is of the job's present attempt and cores, from the node of that rank's placement, and
another one than was known when the window began. No clock is compared, and nothing is believed that was there before:
the agent that wrote it may be dead."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from coda.allocator.ranks import RankReport
from coda.allocator.window_samples import WindowResult
from coda_agent.cluster import Peers, TunedJob


class Gang:
    """The other ranks of the jobs whose rank 0 is on `node`."""

    def __init__(self, node: str, peers: Peers) -> None:
        self._node = node
        self._peers = peers
        self._here: tuple[RankReport, ...] = ()
        self._known: dict[str, dict[int, int | None]] = {}  # by job uid: windows known as its window began, by rank

    def see(self, reports: tuple[RankReport, ...], jobs: Collection[TunedJob]) -> None:
        """Take over the reports of this node's own ranks, and forget all but `jobs`."""
        self._here = reports
        self._known = {job.uid: self._known[job.uid] for job in jobs if job.uid in self._known}
        self._peers.forget_all_except({node for job in jobs for node in job.nodes})

    def begin(self, job: TunedJob) -> None:
        """Begin a window: reports that are known by now belong to an earlier one. Profiles never read are asked for."""
        known = self._known[job.uid] = {}
        for node, ranks in _by_node(job):
            reports = self._reports_of(node)
            if reports is None:
                self._peers.ask(node)
            else:
                known.update(_windows_of(job, ranks, reports))

    def results(self, job: TunedJob) -> tuple[list[WindowResult], list[int]]:
        """Return what belongs to the present window, and the ranks without it; their nodes are asked again."""
        found: list[WindowResult] = []
        missing: list[int] = []
        known = self._known.setdefault(job.uid, {})
        for node, ranks in _by_node(job):
            reports = self._reports_of(node)
            if reports is not None:  # of a profile that was read for the first time, nothing counts yet
                known.update({rank: of for rank, of in _windows_of(job, ranks, reports).items() if rank not in known})
            results = [self._result(job, rank, reports or ()) for rank in ranks]
            found += [result for result in results if result is not None]
            absent = [rank for rank, result in zip(ranks, results, strict=True) if result is None]
            if absent and node != self._node:
                self._peers.ask(node)
            missing += absent
        return found, sorted(missing)

    def _result(self, job: TunedJob, rank: int, reports: Sequence[RankReport]) -> WindowResult | None:
        report, known = _report_of(job, rank, reports), self._known[job.uid]
        if report is None or report.cores != job.tuning_input.cores:
            return None
        return None if rank not in known or report.window == known[rank] else report.result

    def _reports_of(self, node: str) -> tuple[RankReport, ...] | None:
        return self._here if node == self._node else self._peers.reports_of(node)


def _by_node(job: TunedJob) -> Iterator[tuple[str, list[int]]]:
    """The nodes of the other ranks, each with these."""
    ranks: dict[str, list[int]] = {}
    for rank, node in enumerate(job.nodes[1:], 1):
        ranks.setdefault(node, []).append(rank)
    yield from ranks.items()


def _windows_of(job: TunedJob, ranks: Iterable[int], reports: Sequence[RankReport]) -> dict[int, int | None]:
    of = {rank: _report_of(job, rank, reports) for rank in ranks}
    return {rank: None if report is None else report.window for rank, report in of.items()}


def _report_of(job: TunedJob, rank: int, reports: Sequence[RankReport]) -> RankReport | None:
    wanted = job.uid, job.tuning_input.attempt, rank
    return next((one for one in reports if (one.job_uid, one.attempt, one.rank) == wanted), None)
