"""Why CPU jobs wait, as Events. Pods of one owner are a line: its first pod speaks for all, and so does their Job.

A pod has no status field of ours, and a Job may have 10 000 pods: so not each of them is told. An Event is gone after
an hour, so what stays is told again.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice, zip_longest
from typing import Final, NamedTuple

from coda.model import JobId
from coda.model.decision import WaitReason
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.cpu_jobs.pod_events import PodEvents
from coda_extender.planner_process import ChangedRefusals
from coda_kube.api.client import Client
from coda_kube.cpu_jobs import controller_of
from coda_kube.objects.pods.cpu_job import pod_id_of
from coda_kube.objects.read import Pod

LOOK_EVERY_S: Final = 1.0
"""What one look finds is told if the next one finds it too: most pods start at once. Our choice."""

AGAIN_AFTER_S: Final = 60.0
"""Between two Events of one line with the same code. While only numbers change, each pause is twice the last one, up to
`REPEAT_S`: thousands of lines may wait for days. Our choice."""

NEXT_FIRST_S: Final = 10.0
"""Between two Events of one line, of which only the first pod is another now: thousands may start. Our choice."""

REPEAT_S: Final = 1800.0
"""Between two Events of one line that are the same: the API server keeps them for an hour."""

RETRY_S: Final = 10.0
"""Before a line is told again whose Event was not taken. Our choice."""

LINES_AT_ONCE: Final = 20
PACE_S: Final = 0.1
"""Between the beginnings of two times `LINES_AT_ONCE`: so at most 200 lines are told each second. Our choice."""

MOST_AT_ONCE: Final = 500
"""Lines told in one look, the namespaces in turns; the others have their turn in the next one. Our choice."""

_JOBS_AT_ONCE: Final = 1000  # our choice: two milliseconds; then filter calls are answered
_JUDGED_AT_ONCE: Final = 200  # lines; the same, also if each has a text of its own
_TEXTS: Final = 1000  # whose words are kept; our choice: most lines share a few texts


_FIGURE: Final = re.compile(r"(?<![\w-])\d\S*( \w+)?")  # a number and what it counts: "1 node", "2 nodes"


class _Line(NamedTuple):
    first: Pod
    reason: WaitReason
    pods: int


class _Told(NamedTuple):
    """What was told of a line, and when; then, to which pod as the first one, and when."""

    reason: WaitReason
    told_s: float
    first: str  # its uid
    first_s: float
    pause_s: float  # before other numbers are told


class PodReasons:
    """Keeps the refusals of CPU jobs, and posts what changed."""

    def __init__(self, client: Client, cluster: ExtenderCluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._events = PodEvents(client)
        self._reason_by_job: dict[JobId, WaitReason] = {}
        self._seen: dict[str, str] = {}  # by line of the last look, the uid of its first pod
        self._told: dict[str, _Told] = {}  # by line
        self._failed_s: dict[str, float] = {}  # by line: when its Event was not taken

    def change_refusals(self, changes: ChangedRefusals) -> None:
        """Take over what changed. O(jobs that changed)."""
        for _, reason, jobs in changes.groups:
            for job in jobs:
                if pod_id_of(job) is not None:
                    self._reason_by_job[job] = reason
        for job in changes.gone:
            self._reason_by_job.pop(job, None)

    def forget(self) -> None:
        """Forget all refusals: they are told again, or by another leader."""
        self._reason_by_job.clear()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.tell()

    async def tell(self) -> None:
        """Post what changed since it was told, and return when it is posted. O(CPU jobs that wait), in steps.

        A line counts as told once the API server took its Events. If it takes none at all, the next look tries."""
        lines, now_s = await self._lines(), self._clock()
        due = []
        for number, (key, line) in enumerate(lines.items(), start=1):
            if number % _JUDGED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if self._is_due(key, line, now_s):
                due.append(key)
        self._seen = {key: line.first.uid for key, line in lines.items()}
        self._forget_gone(lines, now_s)
        chosen = [*islice(_in_turns(due), MOST_AT_ONCE)]
        for begin in range(0, len(chosen), LINES_AT_ONCE):
            keys = chosen[begin : begin + LINES_AT_ONCE]
            pace = asyncio.create_task(asyncio.sleep(PACE_S))
            try:
                taken = await asyncio.gather(*[self._tell(key, lines[key]) for key in keys])
                await pace
            finally:
                pace.cancel()
            if not any(taken):
                return

    async def _tell(self, key: str, line: _Line) -> bool:
        told, now_s = self._told.get(key), self._clock()
        is_news = self._is_news(told, line, now_s)
        is_taken = await self._post(line, is_news=is_news)
        if is_taken:
            if told is None or is_news:
                pause_s = _next_pause_s(told, line.reason)
                told = _Told(line.reason, now_s, line.first.uid, now_s, pause_s)
            self._told[key] = told._replace(first=line.first.uid, first_s=now_s)
            self._failed_s.pop(key, None)
        else:
            self._failed_s[key] = now_s
        return is_taken

    def _is_due(self, key: str, line: _Line, now_s: float) -> bool:
        if key not in self._seen or now_s < self._failed_s.get(key, -math.inf) + RETRY_S:
            return False
        told = self._told.get(key)
        if told is None or self._is_news(told, line, now_s):
            return True
        stays = self._seen[key] == line.first.uid  # else it starts in a moment, perhaps, as the one before did
        return stays and told.first != line.first.uid and now_s > told.first_s + NEXT_FIRST_S

    @staticmethod
    def _is_news(told: _Told | None, line: _Line, now_s: float) -> bool:
        if told is None or told.reason.code is not line.reason.code:
            return True
        if now_s <= told.told_s + AGAIN_AFTER_S:  # no pause is shorter: so most lines are not compared
            return False
        if told.reason == line.reason:
            return now_s > told.told_s + REPEAT_S
        return now_s > told.told_s + told.pause_s or not _differ_in_numbers(told.reason, line.reason)

    def _forget_gone(self, lines: Mapping[str, _Line], now_s: float) -> None:
        for key in [key for key, told in self._told.items() if key not in lines]:
            if now_s > self._told[key].first_s + AGAIN_AFTER_S:
                del self._told[key]
        for key in [key for key in self._failed_s if key not in lines]:
            del self._failed_s[key]

    async def _lines(self) -> dict[str, _Line]:
        lines: dict[str, _Line] = {}
        for number, (job, reason) in enumerate([*self._reason_by_job.items()], start=1):
            if number % _JOBS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if job not in self._cluster.state.cpu_jobs:
                continue
            pod = self._cluster.state.cpu_jobs.pod(job)
            owner = pod.cpu_job.controller[1] if pod.cpu_job is not None else ""
            key = f"{pod.id.partition('/')[0]}/{owner or pod.uid}"  # an owner is of the pod's namespace
            line = lines.get(key)
            if line is None or _place(pod) < _place(line.first):
                lines[key] = _Line(pod, reason, 1 if line is None else line.pods + 1)
            else:
                lines[key] = line._replace(pods=line.pods + 1)
        for number, (key, line) in enumerate(lines.items(), start=1):
            if number % _JOBS_AT_ONCE == 0:
                await asyncio.sleep(0)
            lines[key] = self._with_refusals(line)
        return lines

    def _with_refusals(self, line: _Line) -> _Line:
        """The line with what kube-scheduler said of the nodes that it avoids."""
        text = self._cluster.state.cpu_jobs.refused.text(controller_of(line.first))
        return line._replace(reason=replace(line.reason, message=f"{line.reason.message}; {text}")) if text else line

    async def _post(self, line: _Line, *, is_news: bool) -> bool:
        """True if every Event was taken. Not `is_news`: the Job shows the same already, and only the pod is another."""
        item = self._cluster.pods.by_key.get(line.first.id)
        if item is None:
            return True  # it is gone, and so it is not the first pod in the next look
        code, message = line.reason.code.value, line.reason.message
        others = f" (pods of its owner that wait: {line.pods})" if line.pods > 1 else ""
        posts = [self._events.posted(item, code, f"waits: {message}{others}")]
        owners = item["metadata"].get("ownerReferences") or ()
        job = next((owner for owner in owners if owner.get("controller") and owner["kind"] == "Job"), None)
        if job is not None and is_news:
            about = job | {"namespace": item["metadata"]["namespace"]}
            posts.append(self._events.posted_about(about, code, f"{message} (pods that wait: {line.pods})"))
        return all(await asyncio.gather(*posts))


def _next_pause_s(told: _Told | None, reason: WaitReason) -> float:
    if told is None or not _differ_in_numbers(told.reason, reason):
        return AGAIN_AFTER_S
    return min(2.0 * told.pause_s, REPEAT_S)


def _differ_in_numbers(told: WaitReason, reason: WaitReason) -> bool:
    """True for two reasons that differ, but not in what is wrong."""
    if told == reason or told.code is not reason.code:
        return False
    return _words(told.message) == _words(reason.message)


@lru_cache(maxsize=_TEXTS)
def _words(message: str) -> str:
    """The message without its numbers."""
    return _FIGURE.sub("", message)


def _in_turns(keys: Iterable[str]) -> Iterator[str]:
    """One of each namespace, then the next of each: nobody waits for the thousands of another."""
    keys_by_namespace: dict[str, list[str]] = {}
    for key in keys:
        keys_by_namespace.setdefault(key.partition("/")[0], []).append(key)
    return (key for key in chain.from_iterable(zip_longest(*keys_by_namespace.values())) if key is not None)


def _place(pod: Pod) -> tuple[float, str]:
    return (pod.cpu_job.created_s if pod.cpu_job is not None else 0.0, pod.id)
