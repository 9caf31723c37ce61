"""One job, one step: read, decide (`coda.lifecycle`), write. A step may be repeated after any interruption.

A decision that rests on the absence of a pod is made on a fresh, consistent list of the job's pods, never on a watch
that may be late. A status write carries the resourceVersion it was decided on; after a conflict the step starts again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from coda.correlation import signature_of
from coda.diagnosis import RuleBook, built_in_rules
from coda.diagnosis.classifier import beside_others
from coda.errors import Conflict, Outage
from coda.lifecycle import (
    Evidence,
    LifecycleConfig,
    Progress,
    Situation,
    Step,
    evidence_needed,
    furthest_step,
    step_refused,
)
from coda.lifecycle.event_rules import is_passing
from coda.lifecycle.evidence import logs_needed
from coda.lifecycle.failures import awaits_news_s
from coda.lifecycle.node_loss import node_word_s
from coda.lifecycle.state import live_ranks, of_attempt
from coda.lifecycle.transitions import (
    after_acceptance,
    after_hopeless_wait,
    is_refused_for_good,
    not_admitted,
    template_refused,
)
from coda.model import FINISHED
from coda_kube.api.client import Client, NotFound, Rejected
from coda_kube.objects.json_types import Json
from coda_operator.cores_limit import NO_LIMIT, CoresLimit
from coda_operator.history import Outbox, finished_job
from coda_operator.metrics import Metrics
from coda_operator.reconcile.accepting.acceptance import Acceptor, NotAdmitted, TemplateRefused, sizes
from coda_operator.reconcile.accepting.asked_again import AskedAgain, in_vain_since_s
from coda_operator.reconcile.api_refusals import DENIED_S, Denials
from coda_operator.reconcile.events import Recorder
from coda_operator.reconcile.failures.guests import had_others
from coda_operator.reconcile.failures.killed_ranks import KilledRanks
from coda_operator.reconcile.failures.rank_logs import RankLogs
from coda_operator.reconcile.failures.shared_claims import SharedClaims
from coda_operator.reconcile.gang_pods import GangPods, PodRefused
from coda_operator.reconcile.job_writer import JobWriter
from coda_operator.reconcile.pod_endings import PodEndings, StopAnnouncer
from coda_operator.reconcile.request_slots import RequestSlots, TurnSlots
from coda_operator.trials import Trials
from coda_operator.view import ClusterView, JobRecord
from coda_operator.work_queue import FIRST_DELAY_S, LAST_DELAY_S

TRIES_AT_ONCE: Final = 3  # after this many conflicts in a row another writer fights us: back off as after an outage
ACCEPTED_AT_ONCE: Final = 4
"""New jobs that are accepted at the same time. The others of a burst wait as keys, not as objects of 40 KiB each.

Our choice: half the slots of `RequestSlots`, so that no slow webhook holds up the jobs that were accepted."""
TRIED_AGAIN_AT_ONCE: Final = 1
"""New jobs that were refused and are tried again at the same time, besides: no other new job waits for them."""


class Reconciler:
    """Takes the steps of jobs."""

    def __init__(
        self,
        client: Client,
        cluster: ClusterView,
        requests: RequestSlots,
        recorder: Recorder,
        metrics: Metrics,
        config: LifecycleConfig,
        outbox: Outbox,
        *,
        clock: Callable[[], float] = time.time,
        rules: RuleBook | None = None,
        trials: Trials | None = None,
        pool_taints: Sequence[str] = (),
        cores_limit: CoresLimit = NO_LIMIT,
    ) -> None:
        self._outbox = outbox
        self._cluster = cluster
        self._requests = requests
        self._config = config
        self._clock = clock
        self._accepting = TurnSlots(ACCEPTED_AT_ONCE)
        self._trying_again = TurnSlots(TRIED_AGAIN_AT_ONCE)
        self._refusals_by_uid: dict[str, int] = {}  # dry runs in a row that the surroundings of a job refused
        self._denials = Denials(clock)
        self._asked_again = AskedAgain(clock)
        self._kept_back_until_s: dict[str, float] = {}  # by uid of jobs with a change that may soon be old
        self._heard: dict[str, int] = {}  # by key: the attempt whose logs named no cause, while news of it is awaited
        self._trials = trials or Trials()
        trial_nodes = self._trials.node_selector
        self._acceptor = Acceptor(client, cluster, requests, trial_nodes, pool_taints, cores_limit=cores_limit)
        self._gang = GangPods(client, cluster, requests, trial_nodes, pool_taints, cores_limit=cores_limit)
        self._logs = RankLogs(client, cluster, rules or built_in_rules())
        self._killed = KilledRanks(client, cluster, requests)
        self._claims = SharedClaims(client, requests, clock)
        self._endings = PodEndings(client, cluster, requests, clock)
        self._announcer = StopAnnouncer(client, cluster, requests, clock)
        self._writer = JobWriter(client, cluster, requests, recorder, metrics, clock)

    async def reconcile(self, key: str) -> float | None:
        """Take one step of the job; return when to look again.

        Raises a CodaError if the API server fails or refuses."""
        job = self._cluster.job(key) if self._cluster.is_new(key) else None
        if job is None:
            return await self._reconcile(key)
        slots = self._trying_again if job.progress.reason else self._accepting  # of a new job: why it was refused
        del job  # of 40 KiB, while it waits
        async with slots.slot(key.partition("/")[0]):
            return await self._reconcile(key)

    async def _reconcile(self, key: str) -> float | None:
        met: Conflict | NotFound | None = None
        for _ in range(TRIES_AT_ONCE):
            job = self._cluster.job(key)
            if job is None:
                self._asked_again.forget(key)
                self._heard.pop(key, None)
                self._claims.forget(key)
                return None
            self._requests.require_lease()
            try:
                return await self._take_step(job)
            except (Conflict, NotFound) as error:
                met = error
                async with self._requests.reading():
                    await self._cluster.read_job_again(key)
        assert met is not None
        raise met

    async def _take_step(self, job: JobRecord) -> float | None:
        """Read, decide, write; return when to look again."""
        self._writer.settle(job)
        if job.is_deleted and not job.is_held:
            self._asked_again.forget(job.key)
            return None  # another removed our finalizer: the garbage collector does what is left
        if job.progress.phase is not None and job.progress.phase not in FINISHED:  # a new job: while it is admitted
            job = await self._writer.add_finalizer(job)
        now = await self._claims.add_to(await self._read(job), job)
        step = furthest_step(now, self._clock(), self._config)
        answer: Json | TemplateRefused | NotAdmitted | None
        job, answer = await self._ask(job, step) if step.accept else (job, await self._request_now(job, step))
        answer = self._judged(job, answer)
        if isinstance(answer, NotAdmitted):
            return await self._wait_for_admission(job, answer)
        self._refusals_by_uid.pop(job.uid, None)
        self._cluster.admission_waiters.discard(job.key)
        if step.accept:
            since_accepted = after_hopeless_wait(job.progress, step.progress, in_vain_since_s(job), self._clock())
            step = replace(step, progress=since_accepted)
        if isinstance(answer, TemplateRefused):
            refused = template_refused(step.progress, job.generation, answer.message, self._clock())
            return await self._write(job, now, replace(step, progress=refused), None)
        if step.accept and answer is not None:
            step = replace(step, progress=self._with_waiting(job, step.progress, answer))
        return await self._write(job, now, step, answer)

    def _judged(
        self, job: JobRecord, answer: Json | TemplateRefused | NotAdmitted | None
    ) -> Json | TemplateRefused | NotAdmitted | None:
        """The answer; of a refused template that may be admitted later: that the job waits for that."""
        if not isinstance(answer, TemplateRefused):
            self._denials.forget(job.uid)
            return answer
        if not is_refused_for_good(job.progress, job.generation, was_accepted=job.request is not None):
            return NotAdmitted(reason="PodRefused", message=f"not accepted again yet: {answer.message}")
        if answer.may_pass and not self._denials.is_final(job.uid, job.generation):
            message = f"not accepted yet, it is tried again for {DENIED_S / 60:g} min: {answer.message}"
            return NotAdmitted(reason="NotAdmitted", message=message)
        return answer

    def _with_waiting(self, job: JobRecord, progress: Progress, request: Json) -> Progress:
        """The progress with the waiting clock of a job that is accepted with this request."""
        size_before, size = sizes(job.json, progress, request)
        return after_acceptance(job.progress, progress, size_before, size, self._clock())

    async def _read(self, job: JobRecord) -> Situation:
        """Read what the step rests on: from the caches, and from the API server what they cannot prove."""
        if job.progress.phase is None:
            await self._trials.known(job.json)
        now = self._situation(job)
        evidence = evidence_needed(now, self._clock(), self._config)
        if evidence is None:
            return await self._with_diagnosis(job, now)
        epoch = None
        async with self._requests.reading():
            if evidence is Evidence.PODS:
                await self._cluster.read_pods_again(job)
            else:
                epoch = await self._cluster.planner_epoch()
        return await self._with_diagnosis(job, self._situation(job, epoch=epoch))

    def _situation(self, job: JobRecord, *, epoch: int | None = None) -> Situation:
        """What the caches know of the job, its record and its trial."""
        return replace(
            self._cluster.situation(job, epoch=epoch),
            ended_s=job.ended_s,
            recorded=self._outbox.is_settled(job.uid, job.progress.attempt),
            wants_trial=self._trials.wants(job.json, job.progress.trial),
            has_stepped=job.told.step is not None,
            reached=job.told.reached,
        )

    async def _with_diagnosis(self, job: JobRecord, now: Situation) -> Situation:
        """Add why the attempt failed, if it did by its own fault: from its logs, which are read for that.

        They are read at once, and, if they name no cause of its own, again when no more news is awaited."""
        if not logs_needed(now, self._clock(), self._config):
            return now
        if awaits_news_s(now, self._clock(), self._config) and self._heard.get(job.key) == now.progress.attempt:
            return now
        has_others = had_others(self._cluster, job, of_attempt(now))  # before the logs are read: some may go meanwhile
        hears_nodes = asyncio.sleep(node_word_s(now, self._clock()))  # the end of a rank may be told before a reboot
        (diagnosis, unread), _ = await asyncio.gather(self._logs.diagnose(job, now), hears_nodes)
        on_seats = job.placement is not None and bool(job.placement.gpus)
        diagnosis = beside_others(diagnosis, on_seats=on_seats) if has_others else diagnosis
        signature = signature_of(diagnosis, job.json["metadata"]["name"])
        alike = self._cluster.failed_jobs.alike(job.json, signature, self._clock())
        killed = await self._killed.of(job, now)
        now = replace(now, diagnosis=diagnosis, unread=unread, signature=signature, alike=alike, killed=killed)
        return self._with_news(job, now)

    def _with_news(self, job: JobRecord, now: Situation) -> Situation:
        """Add what pods and nodes told while the logs were read. None is gone: what had ended has no more to tell."""
        newest = {pod.uid: pod for pod in self._cluster.pods_of(job.json)}
        pods = tuple(newest.get(pod.uid, pod) for pod in now.pods)
        seen, nodes = self._cluster.nodes, [pod.node for pod in pods if pod.node]
        unready_since_s = seen.unready_since_s(nodes)
        outages, boots = seen.outages(nodes), seen.boots(nodes)
        now = replace(now, pods=pods, unready_since_s=unready_since_s, outages=outages, boots=boots)
        if awaits_news_s(now, self._clock(), self._config):
            self._heard[job.key] = now.progress.attempt
        else:
            self._heard.pop(job.key, None)
        return now

    async def _ask(self, job: JobRecord, step: Step) -> tuple[JobRecord, Json | TemplateRefused | NotAdmitted]:
        """Ask the API server what one rank is, and add our finalizer meanwhile. Returns the job as it is then."""
        asking = asyncio.ensure_future(self._acceptor.request_of(job, step.progress))
        try:
            return await self._writer.add_finalizer(job), await asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _request_now(self, job: JobRecord, step: Step) -> Json | None:
        """Return the request of an accepted job: as it was, or as it is now if no present node could hold that.

        Whatever keeps it from being asked now is no reason to give up what was accepted."""
        if step.progress != job.progress or not self._asked_again.take_turn(job):
            return job.request
        try:
            answer = await self._acceptor.request_of(job, step.progress)
        except (Outage, Rejected):
            return job.request
        return job.request if isinstance(answer, TemplateRefused | NotAdmitted) else answer

    async def _wait_for_admission(self, job: JobRecord, answer: NotAdmitted) -> float | None:
        """Say why the job is not accepted yet; return when to ask again, None: in its turn.

        What was accepted before stays as it is."""
        self._asked_again.forget(job.key)
        refusals = self._refusals_by_uid.get(job.uid, 0)
        self._refusals_by_uid[job.uid] = refusals + 1
        progress = not_admitted(job.progress, answer.reason, answer.message, self._clock())
        await self._writer.write_progress(job, progress, job.request)
        if not self._cluster.admission_waiters.add(job.key):
            return None
        return self._clock() + min(LAST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(refusals, 30))

    async def _write(self, job: JobRecord, now: Situation, step: Step, request: Json | None) -> float | None:
        """Carry out what was decided, in an order that a death between two writes does not harm."""
        if (until_s := self._kept_back_s(job, step)) is not None:
            return min(until_s, step.wake_s or until_s)
        if not all(pod.owned for pod in step.delete):
            await self._require_newest(job)
        refused = await self._gang.create_or_resize(job, now, step)
        if refused is not None:
            step = self._after_refusal(self._cluster.situation(job), step, refused)
        elif step.create:
            self._writer.tell_what_is_left_out(job, step.create)
            return self._clock()  # the next step, at once, decides on the pods that now exist
        live = live_ranks(now, self._clock(), self._config)
        await self._writer.write_progress(job, step.progress, request, at_s=step.at_s, live=live, is_over=step.over)
        namespace = job.json["metadata"]["namespace"]
        not_told_s = await self._announcer.tell(job, step.progress.stop_due_s, step.announce)
        not_deleted_s = await self._endings.delete(namespace, job.uid, step.delete)
        not_let_go_s = await self._endings.let_go(namespace, job.uid, step.let_go)
        not_recorded_s = self._post_record(job) if step.record else None
        if step.disconnect:
            await self._gang.delete_service(job)
        if step.finalize:
            await self._writer.remove_finalizer(self._cluster.job(job.key) or job)
            self._outbox.forget(job.uid, job.progress.attempt)
        if step.remove:
            await self._writer.delete_job(job)
        not_cleared_s = await self._endings.delete_left(job) if step.clear else None
        not_booked_s, asked_s = self._cluster.times.due_s(job.uid), self._asked_again.look_s(job)
        not_done_s = (not_told_s, not_deleted_s, not_let_go_s, not_recorded_s, not_cleared_s, not_booked_s, asked_s)
        return min((at_s for at_s in (step.wake_s, *not_done_s) if at_s is not None), default=None)

    def _post_record(self, job: JobRecord) -> float:
        """Have the record of the job's end stored; return when to look again."""
        job = self._newest(job)  # its account was written in this step
        live = None if job.progress.phase in FINISHED else self._cluster.times.of(job.uid)
        spent = live or job.progress.spent
        record = finished_job(job, spent, self._clock())
        since_s = job.progress.completion_s if job.progress.phase in FINISHED else job.deleted_s
        free_s = spent.gpus.since_s if spent is not None and spent.gpus is not None else 0.0  # its last GPUs
        return self._outbox.post(job.key, record, max(since_s, free_s))

    def _newest(self, job: JobRecord) -> JobRecord:
        known = self._cluster.job(job.key)
        return known if known is not None and known.uid == job.uid else job

    async def _require_newest(self, job: JobRecord) -> None:
        """Raise Conflict if the job changed. A pod without an owner is forged, unless its job is being orphaned."""
        async with self._requests.reading():
            await self._cluster.read_job_again(job.key)
        known = self._cluster.job(job.key)
        if known is None or known.version != job.version:
            raise Conflict(f"{job.key} changed")

    def _after_refusal(self, now: Situation, step: Step, refused: PodRefused) -> Step:
        """Take back what a refused pod makes useless. Raises the refusal where nothing is left to take back."""
        after = step_refused(now, step, refused.reason, str(refused.error), self._clock(), self._config)
        if after is None:
            raise refused.error
        return after

    def _kept_back_s(self, job: JobRecord, step: Step) -> float | None:
        """Return until when a change stays unwritten because the next one may soon follow; None: write now."""
        if not is_passing(job.progress, step.progress):
            self._kept_back_until_s.pop(job.uid, None)
            return None
        until_s = self._kept_back_until_s.setdefault(job.uid, self._clock() + self._config.passing_s)
        return until_s if self._clock() < until_s else None
