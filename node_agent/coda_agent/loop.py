"""The agent's rounds: look at the node, let the core decide, act, tell. One round a window.

Everything that touches the node runs in one thread, one after the other; the API server is only talked to from the
event loop, so that its silence delays nothing on the node. What must not live here: any decision.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from coda.contention import Contention, Window, observe
from coda.errors import CodaError
from coda.throttles import Action
from coda_agent.eliminating import Freshness, share_of, window_from
from coda_agent.gpus.devices import Health
from coda_agent.gpus.links import Link, find_links
from coda_agent.gpus.owners import holding_of
from coda_agent.gpus.sampling import Moment
from coda_agent.jobs import TunedJob, tuned_job_from_json
from coda_agent.kube import BROKEN, Cluster
from coda_agent.metrics import Metrics, View
from coda_agent.node import Node
from coda_agent.pods import LocalPod
from coda_agent.reporting import Profile, Socket, events_json, profile_json, profile_object
from coda_agent.sensing import Senses
from coda_agent.settings import Settings
from coda_agent.tuning import Look, Windows
from coda_kube.client import Json

log = logging.getLogger(__name__)

PROFILE_S: Final = 60.0
"""Seconds between two writes of the NodeProfile, at least."""

CALIBRATE_AGAIN_S: Final = 600.0
"""Seconds between two attempts to measure the peak bandwidth on a node that was not idle."""

_T = TypeVar("_T")


class Loop:
    """One agent at work on one node."""

    def __init__(
        self,
        settings: Settings,
        node: Node,
        cluster: Cluster,
        metrics: Metrics,
        clock: Callable[[], Moment] | None = None,
    ) -> None:
        """`clock`: else the machine's."""
        self._settings = settings
        self._node = node
        self._cluster = cluster
        self._metrics = metrics
        self._clock = clock or _now
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="node")
        self._contention = Contention()
        self._windows = Windows(settings.steering(), settings.settle_s)
        self._links: tuple[Link, ...] = ()
        self._seen_devices: frozenset[str] = frozenset()
        self._said: set[str] = set()  # problems of the last round, so that each is logged once
        self._told: Json | None = None
        self._told_at_s = float("-inf")
        self._calibrated_at_s = float("-inf")
        self._uncalibrated: tuple[str, ...] = ()
        self._writes: dict[str, asyncio.Task[None]] = {}  # under way, by what they are about

    async def run(self, stopping: asyncio.Event) -> None:
        """Rounds until `stopping`; then everything temporary is undone."""
        try:
            while not stopping.is_set():
                began_s = time.monotonic()
                await self.round()
                self._metrics.took(time.monotonic() - began_s)
                await _pause(stopping, began_s + self._settings.contention_window_s)
        finally:
            await self.end()

    async def round(self) -> Senses:
        """One window: measure, decide, act, tell."""
        local = self._cluster.pods()
        senses = await self._on_node(lambda: self._node.sensor.sense(local, self._clock()))
        window = self._window(senses, local)
        self._contention, actions = observe(self._contention, window, self._node.hardware, self._settings.contention())
        problems = senses.problems
        if not self._settings.dry_run:
            problems += await self._on_node(lambda: self._carry_out(senses, actions))
            problems += await self._calibrated(local, senses)
        self._say(problems)
        self._tell_actions(actions, {pod.uid: pod for pod in local}, senses.at.wall_s)
        self._tune(senses, local)
        await self._follow_devices(senses)
        self._tell_profile(senses)
        self._metrics.view = View(
            senses=senses,
            pods={pod.uid: pod for pod in local},
            peaks_bytes_per_s=self._node.hardware.peak_bytes_per_s,
            throttles=self._node.throttles,
            stale_s=self._cluster.stale_s(),
        )
        return senses

    async def end(self) -> None:
        """Undo everything temporary and stop writing."""
        for task in self._writes.values():
            task.cancel()
        await asyncio.gather(*self._writes.values(), return_exceptions=True)
        if not self._settings.dry_run:
            restoration = await self._on_node(self._node.restore)
            for sentence in restoration.failures:
                log.error("left behind: %s", sentence)
        self._thread.shutdown()

    def profile(self, senses: Senses) -> Json:
        """What the NodeProfile says."""
        node = self._node
        return profile_json(
            Profile(
                cores=node.topology.cores,
                sockets=[
                    Socket(
                        id=socket,
                        cpus=cpus,
                        peak_bytes_per_s=None if node.peak is None else node.peak.bytes_per_s.get(socket),
                        peak_source=None if node.peak is None else node.peak.source,
                    )
                    for socket, cpus in node.topology.cpus_by_socket.items()
                ],
                abilities=node.abilities,
                limits_cores=node.limits_cores,
                gpus=senses.gpus.readings,
                links=self._links,
                throttles=node.throttles,
                lacks=(*node.abilities.lacks, *([senses.gpus.why] if senses.gpus.why else [])),
            )
        )

    def _window(self, senses: Senses, local: tuple[LocalPod, ...]) -> Window:
        return window_from(senses, local, self._node.hardware, Freshness(pods_s=self._cluster.stale_s()))

    def _carry_out(self, senses: Senses, actions: tuple[Action, ...]) -> tuple[str, ...]:
        learned = self._node.learn_peak(senses.traffic.totals)
        followed = self._node.follow(senses.cgroup_by_pod, senses.traffic.uncounted)
        return (*learned, *followed, *self._node.act(actions, frozenset(senses.cgroup_by_pod)))

    async def _calibrated(self, local: tuple[LocalPod, ...], senses: Senses) -> tuple[str, ...]:
        """Measure the peak bandwidth once, as soon as the node is idle; what keeps it from that is told meanwhile."""
        now_s = senses.at.monotonic_s
        if not self._settings.calibrate or not self._node.lacks_measured_peak or self._cluster.stale_s() > 0:
            return ()
        if now_s - self._calibrated_at_s >= CALIBRATE_AGAIN_S:
            self._calibrated_at_s = now_s
            tenants = [pod.id for pod in local if pod.trains and not pod.ended]
            self._uncalibrated = await self._on_node(lambda: self._node.calibrate(tenants))
        return self._uncalibrated

    def _say(self, problems: tuple[str, ...]) -> None:
        for sentence in problems:
            if sentence not in self._said:
                log.warning("%s", sentence)
        self._metrics.had_problems(len(problems))
        self._said = set(problems)

    def _tell_actions(self, actions: tuple[Action, ...], pods: Mapping[str, LocalPod], wall_s: float) -> None:
        for action in actions:
            self._metrics.acted(action)
            events = events_json(action, pods, self._settings.node_name, wall_s)
            for event in events:
                log.info("%s/%s: %s", event["metadata"]["namespace"], event["involvedObject"]["name"], event["message"])
                self._write(f"event {id(event)}", partial(self._cluster.post_event, event))

    def _tune(self, senses: Senses, local: tuple[LocalPod, ...]) -> None:
        firsts = {pod.member.job: pod for pod in local if pod.runs and pod.member is not None and pod.member.rank == 0}
        self._cluster.follow_jobs(firsts)
        jobs = {job.uid: (job, firsts[name]) for name in firsts if (job := self._job(name, firsts[name])) is not None}
        self._windows.keep_only(jobs)
        for job, pod in jobs.values():
            if f"tuning {job.id}" in self._writes:
                continue  # what is written now comes back first
            look = Look(
                at_s=senses.at.monotonic_s,
                wall_s=senses.at.wall_s,
                container=self._cluster.container_of(pod),
                share=share_of(pod, senses),
                why_not=holding_of(pod.uid, senses.ownerships).why_not,
            )
            tuning = self._windows.step(job, look)
            if tuning != job.tuning:
                self._metrics.tuned(tuning.phase.value)
                about = tuning.message or f"{job.standing.cores if tuning.wish is None else tuning.wish.cores} cores"
                log.info("%s: %s, %s", job.id, tuning.phase.value, about)
                self._write(f"tuning {job.id}", partial(self._cluster.write_tuning, job, tuning))

    def _job(self, name: str, pod: LocalPod) -> TunedJob | None:
        item = self._cluster.job(name)
        if item is None or pod.member is None or item["metadata"]["uid"] != pod.member.job_uid:
            return None
        try:
            job = tuned_job_from_json(item, self._node.topology.cores)
        except BROKEN as error:
            self._say((f"job {name} cannot be read and is not tuned: {error}",))
            return None
        return job if job is not None and job.standing.attempt == pod.member.attempt else None

    async def _follow_devices(self, senses: Senses) -> None:
        devices = frozenset(reading.gpu.uuid for reading in senses.gpus.readings)
        if devices != self._seen_devices:
            self._links = await self._on_node(lambda: find_links(self._node.gpus.open_devices()))
            self._seen_devices = devices

    def _tell_profile(self, senses: Senses) -> None:
        now_s = senses.at.monotonic_s
        settling = any(reading.health is Health.SETTLING for reading in senses.gpus.readings)
        if now_s - self._told_at_s < PROFILE_S or settling:  # soon well, but told for a minute
            return
        status = self.profile(senses)
        if status == self._told and not status["throttles"]:
            return
        self._told, self._told_at_s = status, now_s
        profile = profile_object(self._settings.node_name, status, senses.at.wall_s)
        self._write("profile", lambda: self._cluster.write_profile(profile))

    def _write(self, about: str, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """In the background; what fails is counted, and tried again by the round that finds it missing."""
        if self._settings.dry_run:
            return

        async def attempt() -> None:
            try:
                await write()
            except CodaError as error:
                self._metrics.write_failed()
                log.warning("%s not written: %s", about.partition(" ")[0], error)
                if about == "profile":
                    self._told = None
            finally:
                self._writes.pop(about, None)

        self._writes[about] = asyncio.create_task(attempt())

    def _on_node(self, work: Callable[[], _T]) -> Awaitable[_T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)


def _now() -> Moment:
    return Moment(monotonic_s=time.monotonic(), wall_s=time.time())


async def _pause(stopping: asyncio.Event, until_s: float) -> None:
    try:
        await asyncio.wait_for(stopping.wait(), timeout=max(0.0, until_s - time.monotonic()))
    except TimeoutError:
        return
