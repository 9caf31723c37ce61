"""The agent's rounds: read the node, let the core decide, write. One round per window.

All work on the node runs in one thread, one task after the other. The event loop alone talks to the API server, so a
slow server delays nothing on the node. Undoing has a thread of its own: it needs no sensor and no other thread."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from coda.contention import Action
from coda.errors import Outage
from coda_agent.cluster import AgentCaches, BackgroundWrites, Claims, LocalPod
from coda_agent.gpus import LibraryState, Moment
from coda_agent.modes import ThrottleMode, TuneMode
from coda_agent.node import Carried, Node
from coda_agent.progress import ProgressFollower, StopTeller, find_report, tell_stop
from coda_agent.report import (
    GpuUse,
    GpuUses,
    LastWindow,
    Metrics,
    ProfileWriter,
    XidRecord,
    crowded_event_json,
    events_json,
    profile_status,
)
from coda_agent.seats import Seats
from coda_agent.sensor import Senses
from coda_agent.settings import Settings
from coda_agent.sharing import SharedGpus
from coda_agent.throttling import Eliminator, Restoration, window_from
from coda_agent.throttling.followed_pods import worth_by_pod
from coda_agent.tuning import Tuner
from coda_agent.worker_thread import WorkerThread
from coda_kube.objects.json_types import Json
from coda_kube.say_again import SayAgain

log = logging.getLogger(__name__)

HANGS_S: Final = 120.0
"""Seconds without a finished round after which the agent counts as hanging. Measuring the peak takes about 15 s."""

STOP_S: Final = 2.0
"""Seconds that a round may still take once the agent is told to stop. Our choice: rounds take milliseconds."""

UNDO_S: Final = 5.0
"""Seconds to undo everything at the end. With the last write of the NodeProfile it ends before 10 s have passed."""

OUTDATED_S: Final = 60.0
"""Seconds with a GPU library of another version than the driver until the agent ends. Our choice: an upgrade of the
driver replaces both within that time."""

CALIBRATE_WITHIN_S: Final = 4 * 3600.0
CALIBRATE_AGAIN_S: Final = 600.0
"""Seconds after the start within which the peak bandwidth is measured, at random, and the least to the next attempt.
Until then it is computed from the memory modules. Our choice: a thousand nodes then are one at a time."""

CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]")
"""What would split or colour a line of the log: sentences repeat words of the kubelet and the driver."""

LOOK_FOR_PODS_S: Final = 0.5
"""Seconds between two looks for new pods while the node's cores are loaded."""

SAY_AGAIN_S: Final = 600.0
"""Seconds in which a pod was not crowded out of a GPU, after which that is said of it again. Our choice: an owner may
say each second that it waits."""

REMIND_S: Final = 1800.0
"""Seconds after which a pod is told again that it is crowded out: an API server forgets events, by default after an
hour. `coda explain` reads them. Our choice."""

_T = TypeVar("_T")


class Loop:
    """One agent at work on one node."""

    def __init__(
        self,
        settings: Settings,
        node: Node,
        cluster: AgentCaches,
        metrics: Metrics,
        clock: Callable[[], Moment] | None = None,
    ) -> None:
        """`clock`: for emulated nodes; None: the machine's."""
        self._settings = settings
        self._node = node
        self._cluster = cluster
        self._metrics = metrics
        self._clock = clock or _now
        self._thread = WorkerThread("node")
        self._writes = BackgroundWrites(
            metrics.count_failed_write, lambda: self._clock().monotonic_s, muted=node.reads_only
        )
        self._tuner = Tuner(settings, cluster, metrics, self._writes)
        self._progress = ProgressFollower(settings.progress_s, cluster, self._writes)
        shares = settings.sharing and not node.reads_only
        self._sharing = SharedGpus.from_settings(settings) if shares else None
        self._seats = Seats(settings, node.state_dir) if shares else None
        self._gpu_uses = GpuUses()
        # When it was last so, and when that was last said; see `_crowded_out`.
        self._crowded: dict[tuple[str, str, bool], tuple[float, float]] = {}
        self._stops = StopTeller()
        self._xids = XidRecord(node.state_dir, reads_only=node.reads_only)
        self._profile_writer = ProfileWriter(settings.node_name, settings.tune, node, cluster, self._writes)

        # Kept between rounds.
        self.eliminator = Eliminator(settings.contention_config(), settings.throttle, node.state_dir)
        self._was_ready = False  # NVML answered to this process
        self._outdated_since_s: float | None = None
        self._logged: dict[str, SayAgain] = {}  # problems of the last round: none is logged in each
        self._calibrate_at_s: float | None = None  # not before then
        self._calibration_problems: tuple[str, ...] = ()
        self._last_round_s = time.monotonic()  # when the last round ended
        self._event_numbers = count()

    async def run(self, stopping: asyncio.Event) -> None:
        """Run rounds until `stopping`; then undo everything temporary.

        Raises Outage, after undoing, where only a new process helps: a round hangs, or the GPU library is outdated."""
        try:
            if self._sharing is not None:
                self._sharing.start()
            while not stopping.is_set():
                began_s = time.monotonic()
                senses = await _finished(asyncio.ensure_future(self.round()), stopping)
                if senses is None:
                    return
                self._last_round_s = time.monotonic()
                self._metrics.observe_round(self._last_round_s - began_s)
                self._require_current_library(senses)
                await _pause(stopping, began_s + self._settings.contention_window_s)
        finally:
            await self.end()

    def is_alive(self) -> bool:
        """False once no round has ended for `HANGS_S`: a driver that hangs must not keep throttles in force."""
        return time.monotonic() - self._last_round_s < HANGS_S

    async def round(self) -> Senses:
        """Go once through read, decide and write. Return what was measured."""
        # 1. Read: the pods from the cache, then the node.
        age_s, local, claims = self._cluster.pods_age_s(), self._cluster.pods(), self._cluster.claims()
        senses = await self._on_node(lambda: self._sense(local, claims))

        # 2. Decide: which throttles to make and to release.
        window = window_from(senses, local, self._node.hardware, self._cluster.pods_age_s())
        actions = self.eliminator.decide(window, self._node.hardware)

        # 3. Write to the node.
        problems = senses.problems
        if not self._node.reads_only and self._settings.throttle is not ThrottleMode.OFF:
            done = actions if self.eliminator.acts else ()
            worth = worth_by_pod(local, senses.cpu_by_pod)
            written = await self._on_node(lambda: self._write_to_node(senses, worth, done))
            problems += written.problems
            actions = written.done if self.eliminator.acts else actions
            if done:
                self._metrics.observe_throttle(self._clock().monotonic_s - senses.at.monotonic_s)
            problems += await self._calibrate_if_idle(local, senses)

        # 4. Write to the cluster: events, tunings, progress, and the NodeProfile.
        pods = {pod.uid: pod for pod in local}
        self._report_actions(actions, pods, senses.at.wall_s)
        if self._settings.tune is not TuneMode.OFF:
            problems += self._tuner.step(senses, local, self.eliminator.disturbed_at_s, self._node.topology.cores)
        problems += await self._tell_stops(local, senses.at.monotonic_s, age_s)
        problems += await self._follow_progress(local, senses.at)
        if self._sharing is not None:
            problems += self._sharing.round(senses, local)
        numbers: Mapping[str, int] = {}
        uses: Mapping[str, GpuUse] = {}
        if self._seats is not None:
            problems += self._seats.round(senses.gpus.readings, senses.grants if senses.are_grants_known else None)
            awaited = frozenset[str]() if self._sharing is None else self._sharing.awaited
            heard = None if self._sharing is None else self._sharing.heard
            uses = self._gpu_uses.see(senses, self._crowded_out(pods, awaited, senses.at), awaited, heard)
            numbers = self._seats.number_by_gpu
        self._log_problems(problems)
        if self._xids.see(senses):
            await self._on_node(self._xids.store)
        self._profile_writer.write_profile(senses, self._tuner.reports, self._xids.entries, numbers, uses)

        # 5. Keep the window for the next scrape.
        self._metrics.show(
            LastWindow(
                senses=senses,
                pods=pods,
                peaks_bytes_per_s=self._node.hardware.peak_bytes_per_s,
                throttles=self._node.throttles,
                pods_age_s=self._cluster.pods_age_s(),
                tuned=self._tuner.jobs,
            )
        )
        return senses

    async def end(self) -> None:
        """Undo everything temporary and stop writing. No sensor is asked, and a thread that hangs is left behind.

        Shared GPUs come last: nothing about them keeps a throttle in force."""
        try:
            await self._undo()
        finally:
            if self._sharing is not None:
                self._sharing.stop()
            if self._seats is not None:
                await self._seats.stop()

    async def _undo(self) -> None:
        await self._writes.cancel()
        await self._tuner.cancel()
        self._thread.end()
        if self._node.reads_only:
            return
        undoing = WorkerThread("undo")
        try:
            restoration = await asyncio.wait_for(undoing.do(self._undo_all), timeout=UNDO_S)
        except TimeoutError:
            log.error("left behind: undoing did not end within %.0f s; the next agent goes on with it", UNDO_S)
            return
        finally:
            undoing.end()
        for sentence in restoration.failures:
            log.error("left behind: %s", sentence)
        await self._profile_writer.write_last_profile(self._clock().wall_s)

    def _undo_all(self) -> Restoration:
        restoration = self._node.restore_at_end()
        for sentence in self.eliminator.store(at_end=True):
            log.warning("%s", sentence)
        return restoration

    def profile(self, senses: Senses) -> Json:
        """Return the `status` of the NodeProfile, without its time."""
        return profile_status(self._node, senses, self._settings.tune, self._xids.entries)

    async def _tell_stops(self, local: tuple[LocalPod, ...], now_s: float, age_s: float) -> tuple[str, ...]:
        folder = self._settings.pods_dir if self._settings.stop_notices and not self._node.reads_only else None
        if folder is None or not (due := self._stops.due(local, now_s, age_s)):
            return ()

        def tell(pod: LocalPod) -> str:
            return "" if pod.stop is None else tell_stop(folder, pod.uid, pod.stop, self._stops.left_s(pod, now_s))

        return self._stops.take(due, await self._on_node(lambda: {pod.uid: tell(pod) for pod in due}))

    async def _follow_progress(self, local: tuple[LocalPod, ...], now: Moment) -> tuple[str, ...]:
        folder = self._settings.pods_dir
        if folder is None or not (due := self._progress.due(local, now.monotonic_s)):
            return ()
        found = await self._on_node(lambda: {pod.uid: find_report(folder, pod.uid) for pod in due})
        return self._progress.take(due, found, now)

    def _sense(self, local: tuple[LocalPod, ...], claims: Claims) -> Senses:
        self._node.look_again(self._clock().monotonic_s)
        return self._node.sensor.sense(local, self._clock(), claims)

    def _write_to_node(self, senses: Senses, worth: Mapping[str, float], actions: tuple[Action, ...]) -> Carried:
        """Raise a peak that proved too low, refresh the pods' groups, then carry out the actions.

        Throttles that the node refused are given up at once: else the trial would judge nothing, and events claim it.
        """
        problems = self.eliminator.store()
        problems += self._node.learn_peak(senses.traffic.totals, senses.at.monotonic_s)
        problems += self._node.refresh_pod_groups(senses.cgroup_by_pod, worth, senses.traffic.uncounted)
        carried = self._node.carry_out(actions)
        ends = self.eliminator.give_up(carried.refused)
        ended = self._node.carry_out(ends)
        lost = self._node.restore_lost(frozenset(senses.cgroup_by_pod))
        done = carried.done + ended.done + lost.done
        return Carried(done=done, problems=(*problems, *carried.problems, *ended.problems, *lost.problems))

    async def _calibrate_if_idle(self, local: tuple[LocalPod, ...], senses: Senses) -> tuple[str, ...]:
        """Measure the peak bandwidth once, when the node is idle. Until then return what prevents it.

        Not at once: after an installation all idle nodes of a cluster would draw their full power in the same minute.
        It ends early when a pod comes."""
        now_s = senses.at.monotonic_s
        if not self._settings.calibrate or not self._node.lacks_measured_peak or self._cluster.pods_age_s() > 0:
            return ()
        if self._calibrate_at_s is None:
            self._calibrate_at_s = now_s + random.uniform(0.0, CALIBRATE_WITHIN_S)
        if now_s >= self._calibrate_at_s:
            self._calibrate_at_s = now_s + random.uniform(1.0, 2.0) * CALIBRATE_AGAIN_S
            self._calibration_problems = await self._calibrate(local)
        return self._calibration_problems

    async def _calibrate(self, local: tuple[LocalPod, ...]) -> tuple[str, ...]:
        gpu_pods = [pod.id for pod in local if pod.needs_quiet]
        before, has_come = {pod.uid for pod in local}, threading.Event()
        measuring = asyncio.ensure_future(self._on_node(lambda: self._node.calibrate(gpu_pods, has_come.is_set)))
        try:
            while not measuring.done():
                await asyncio.wait({measuring}, timeout=LOOK_FOR_PODS_S)
                if {pod.uid for pod in self._cluster.pods()} - before:
                    has_come.set()
            return measuring.result()
        finally:
            has_come.set()

    def _log_problems(self, problems: tuple[str, ...]) -> None:
        self._logged = {sentence: self._logged.get(sentence) or SayAgain() for sentence in problems}
        for sentence, said in self._logged.items():
            if said.is_due():
                log.warning("%s", CONTROLS.sub(" ", sentence))
        self._metrics.count_problems(len(problems))

    def _report_actions(self, actions: tuple[Action, ...], pods: Mapping[str, LocalPod], wall_s: float) -> None:
        is_done = self.eliminator.acts and not self._node.reads_only
        for action in actions:
            self._metrics.count_action(action, is_done=is_done)
            events = events_json(action, pods, self._node.abilities.unit, self._settings.node_name, wall_s)
            for event in events:
                name = f"{event['metadata']['namespace']}/{event['involvedObject']['name']}"
                log.info("%s: %s%s", name, "" if is_done else "only observed, not done: ", event["message"])
                if is_done:
                    self._writes.begin(f"event {next(self._event_numbers)}", partial(self._cluster.post_event, event))

    def _crowded_out(
        self, pods: Mapping[str, LocalPod], awaited: frozenset[str], at: Moment
    ) -> Mapping[str, tuple[str, ...]]:
        """Who should go on elsewhere, by GPU. It is said on the pod, too: again if it was not so for a while, or is so
        for long."""
        crowded = {} if self._sharing is None else self._sharing.to_move
        now = {(uid, gpu, gpu in awaited) for gpu, uids in crowded.items() for uid in uids if uid in pods}
        now_s = at.monotonic_s
        known = {one: times_s for one, times_s in self._crowded.items() if now_s - times_s[0] < SAY_AGAIN_S}
        said_s = {one: told_s for one, (_, told_s) in known.items() if now_s - told_s < REMIND_S or one not in now}
        for uid, gpu, ends in sorted(now - said_s.keys()):
            event = crowded_event_json(pods[uid], gpu, self._settings.node_name, at.wall_s, ends=ends)
            log.info("%s: %s", pods[uid].id, event["message"])
            self._writes.begin(f"event {next(self._event_numbers)}", partial(self._cluster.post_event, event))
        self._crowded = known | {one: (now_s, said_s.get(one, now_s)) for one in now}
        return crowded

    def _require_current_library(self, senses: Senses) -> None:
        """End where the driver was upgraded under this agent: a new container is given the new library.

        Where NVML never answered, a new container would find the same."""
        library, now_s = senses.gpus.library, senses.at.monotonic_s
        self._was_ready |= library is LibraryState.READY
        if library is not LibraryState.OUTDATED or not self._was_ready:
            self._outdated_since_s = None
            return
        if self._outdated_since_s is None:
            self._outdated_since_s = now_s
        if now_s - self._outdated_since_s >= OUTDATED_S:
            raise Outage("the GPU driver was upgraded: this process ends, so that the next one gets the new library")

    def _on_node(self, work: Callable[[], _T]) -> Awaitable[_T]:
        return self._thread.do(work)


def _now() -> Moment:
    wall_s = time.time()
    return Moment(monotonic_s=time.monotonic(), wall_s=wall_s, node_wall_s=wall_s)


async def _finished(round_: asyncio.Future[Senses], stopping: asyncio.Event) -> Senses | None:
    """Return the round's result; None if it does not end soon after `stopping`.

    Raises Outage for a round that hangs. It may end much later; what it then wants to write is not done."""
    stop: asyncio.Future[Any] = asyncio.ensure_future(stopping.wait())
    both: set[asyncio.Future[Any]] = {round_, stop}
    try:
        await asyncio.wait(both, timeout=HANGS_S, return_when=asyncio.FIRST_COMPLETED)
        if not round_.done():
            await asyncio.wait({round_}, timeout=STOP_S)
        if round_.done():
            return round_.result()
        if not stopping.is_set():
            raise Outage(f"the node did not answer for {HANGS_S:.0f} s")
        return None
    finally:
        stop.cancel()
        round_.cancel()


async def _pause(stopping: asyncio.Event, until_s: float) -> None:
    try:
        await asyncio.wait_for(stopping.wait(), timeout=max(0.0, until_s - time.monotonic()))
    except TimeoutError:
        return
