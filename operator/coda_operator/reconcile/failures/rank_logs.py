"""Reads why an attempt failed: the ends of its ranks' logs, a few at a time, none for long and none stored.

First those of failed ranks, the first to end first. Where they name no cause, also those of ranks that still run: the
rank that failed first may be the last one to be told of. A rank that was ended from outside tells nothing: its code and
its log are the answer to that. What cannot be read is said in one sentence, and what is known
of the ends decides alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from coda.diagnosis import Diagnosis, End, RankLog, Reason, Retry, RuleBook, conclude, examine
from coda.diagnosis.classifier import Found
from coda.diagnosis.xids import SeenXid
from coda.errors import CodaError
from coda.lifecycle import PodState, RankPod, Situation
from coda.lifecycle.state import of_attempt
from coda_kube.api.client import Client
from coda_operator.view import ClusterView, JobRecord

Result = TypeVar("Result")

KEPT_BYTES: Final = 1 << 20
MOST_BYTES: Final = 64 << 20  # that a kubelet sends of one log; it rotates logs at 10 MiB
MOST_LINES: Final = 20_000
LOG_LIMIT_S: Final = 10.0
ALL_LIMIT_S: Final = 20.0
"""For all logs of one round. Two rounds stay well within the 60 s after which a leader without progress hangs."""
MOST_LOGS: Final = 16  # of failed ranks, as many of the others, and messages. Our choice: a peer seldom says more
XID_LIMIT_S: Final = 8.0
"""To wait for what the node's agent saw: its round takes a second, and it writes news within five."""
AT_ONCE: Final = 8  # of all jobs together, each of 2 MiB at most
_PLAIN_ENDS: Final = frozenset({"", "Error", "Completed"})


class RankLogs:
    """Reads and classifies. One for all jobs: together they read at most `AT_ONCE` logs at the same time."""

    def __init__(self, client: Client, cluster: ClusterView, rules: RuleBook) -> None:
        self._client = client
        self._cluster = cluster
        self._rules = rules
        self._slots = asyncio.Semaphore(AT_ONCE)
        # A log of noise takes half a second: no event loop, and so no other job, waits for that.
        self._examiner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="logs")

    async def diagnose(self, job: JobRecord, now: Situation) -> tuple[Diagnosis, str]:
        """Return the root cause, and which logs could not be read ("": none). It takes 50 s at most."""
        pods = of_attempt(now)
        ended = [pod for pod in pods if pod.state is PodState.FAILED and not (pod.disrupted or pod.terminating)]
        failed = sorted(ended, key=lambda pod: (pod.ended_s or 0.0, pod.rank))
        shown, unread = await self._read(job, failed[:MOST_LOGS])
        found = await self._concluded(shown, self._ends(pods, failed))
        if not found.explicit or found.retry is Retry.OTHER_NODE:  # perhaps a victim: the root may not be told of yet
            others = [pod for pod in pods if pod.state is PodState.STARTED and not pod.terminating][:MOST_LOGS]
            more, _ = await self._read(job, others)
            shown = [*shown, *more]
            found = await self._concluded(shown, self._ends(pods, failed))
        is_open = not found.explicit or found.retry is Retry.OTHER_NODE or found.reason is Reason.INVALID_ACCESS
        if is_open and found.xid is None and await self._cluster.agents.await_xid(pods, XID_LIMIT_S):
            found = await self._concluded(shown, self._ends(pods, failed))
        return found, unread

    def _ends(self, pods: Sequence[RankPod], failed: Sequence[RankPod]) -> list[End]:
        """Return how ranks ended, the first failed one first, and what agents saw on GPUs of the others."""
        xids_of = self._cluster.agents.xids_of
        ends = [_end(pod, xids_of(pod), heard=number < MOST_LOGS) for number, pod in enumerate(failed)]
        others = [(pod, xids_of(pod)) for pod in pods if pod not in failed]
        return ends + [End(rank=pod.rank, xids=xids) for pod, xids in others if xids]

    async def _concluded(self, shown: list[Found], ends: list[End]) -> Diagnosis:
        """Off the event loop: a gang has thousands of ends, and a Lease would not be renewed meanwhile."""
        return await self._in_thread(partial(conclude, shown, ends, self._rules))

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._examiner, work)

    async def _read(self, job: JobRecord, pods: Sequence[RankPod]) -> tuple[list[Found], str]:
        """Return what the logs show, in the order of `pods`, and which could not be read in time."""
        tasks = [asyncio.create_task(self._read_one(job, pod)) for pod in pods]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=ALL_LIMIT_S)
        finally:
            late = [task for task in tasks if not task.done()]
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        shown: list[Found] = []
        troubles: list[tuple[int, str]] = []
        for pod, task in zip(pods, tasks, strict=True):
            answer = "no time was left" if task in late else task.result()
            if isinstance(answer, str):
                troubles.append((pod.rank, answer))
            else:
                shown += answer
        return shown, _said(sorted(troubles))

    async def _read_one(self, job: JobRecord, pod: RankPod) -> list[Found] | str:
        """Return what the end of the log shows, or why it cannot be read. Of the log nothing is kept."""
        query = {"tailLines": str(MOST_LINES), "limitBytes": str(MOST_BYTES), "timestamps": "true"}
        main = job.json["spec"]["template"]["spec"]["containers"][0]["name"]
        query["container"] = pod.failed_container or main
        async with self._slots:
            try:
                path = f"{job.pods_path}/{pod.name}/log"
                log = await self._client.tail(path, query, keep_bytes=KEPT_BYTES, limit_s=LOG_LIMIT_S)
            except CodaError as error:
                return str(error)[:200]
            return await self._in_thread(partial(examine, RankLog(log=log, rank=pod.rank), self._rules))


def _end(pod: RankPod, xids: tuple[SeenXid, ...], *, heard: bool) -> End:
    """`heard`: its message counts too, of 4 KiB perhaps."""
    said = [text for text in (pod.reason, pod.message if heard else "") if text not in _PLAIN_ENDS]
    return End(exit_code=pod.exit_code, said=tuple(said), rank=pod.rank, xids=xids)


def _said(troubles: Sequence[tuple[int, str]]) -> str:
    """Say in one sentence which logs could not be read; the first reason stands for all."""
    if not troubles:
        return ""
    ranks = ", ".join(str(rank) for rank, _ in troubles[:8]) + (", ..." if len(troubles) > 8 else "")
    many = "logs of ranks" if len(troubles) > 1 else "log of rank"
    return f"the {many} {ranks} could not be read: {troubles[0][1]}"
