"""Jobs as bytes: a tenth of the parsed size, in one piece. Finished ones stay for weeks and are compressed as well."""

from __future__ import annotations

import sys
import zlib
from typing import Any, Final

import orjson

from coda.lifecycle import TEMPLATE_REFUSED
from coda.model import FINISHED, Phase
from coda_kube.api.watch_cache import key_of, metadata_only, version_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_USER, FINALIZER, LABEL_JOB_UID
from coda_operator.view.job_record import ANNOTATIONS_OF_TOOLS

FINISHED_PHASES: Final = frozenset(phase.value for phase in FINISHED)

_LEVEL: Final = 6
_NONE_FAILED: Final = (0, 0)
_BACKS_OFF: Final = frozenset({Phase.QUEUED.value, Phase.RESTARTING.value})
_JSON: Final = b"{"  # how a job begins that is not compressed; zlib's bytes never begin so

_SOMETIMES: Final = (
    b'"nodeSelectorTerms":[{"matchExpressions":[{"key":"operator":"In","values":[{"effect":"NoSchedule","key":"nvidia.com/gpu"'
    b'"conditions":[{"status":"True","type":"Failed","reason":"message":"avoidNodes":[{"name":"node-0","until":"'
    b'"resize":{"attempt":1,"sequence":"cores":"ended":"activeDeadlineSeconds":86400,"category":"NLP",'
    b'"hints":{"complexProcessing":true,"manyWeights":true,"pipelined":true},"locality":{"required":"rack"},'
    b'"deletionTimestamp":"deletionGracePeriodSeconds":0,"labels":{"app.kubernetes.io/name":'
    b'"ownerReferences":[{"apiVersion":"blockOwnerDeletion":true,"controller":true,'
    b'"finalizers":["coda.scheduler/pods"],"ttlSecondsAfterFinished":604800,"phase":"Failed"'
)
_USUALLY: Final = (  # a finished job as operator and extender leave it, in the API server's order
    b'{"metadata":{"creationTimestamp":"2026-11-01T00:00:00Z","generation":1,"name":"train-","namespace":"team-",'
    b'"resourceVersion":"1","uid":"-4000-8000-","annotations":{"coda.scheduler/user":"}},"spec":{'
    b'"cpusPerReplica":"auto","dnsNames":"RankZero","gpusPerReplica":8,"onNodeLoss":"Restart","replicas":1,'
    b'"reportProgress":true,"resumable":false,"retries":3,"serviceClass":"Guaranteed","startDeadlineSeconds":1800,'
    b'"successPolicy":"AllRanks","suspend":false},"status":{"array":"GPU","attempt":1,"avoidNodes":[],'
    b'"completionTime":"2026-11-01T00:00:00.000Z","conditions":[{"lastTransitionTime":"2026-11-01T00:00:00.000Z",'
    b'"message":"accepted; waits for a placement","observedGeneration":1,"reason":"Queued","status":"True",'
    b'"type":"Accepted"},{"lastTransitionTime":"2026-11-01T00:00:00.000Z",'
    b'"message":"all 1 pods of attempt 1 are created","observedGeneration":1,"reason":"Launched","status":"True",'
    b'"type":"Launched"},{"lastTransitionTime":"2026-11-01T00:00:00.000Z","message":"all 1 ranks have started",'
    b'"observedGeneration":1,"reason":"Running","status":"True","type":"Bound"},'
    b'{"lastTransitionTime":"2026-11-01T00:00:00.000Z","message":"all 1 ranks succeeded","observedGeneration":1,'
    b'"reason":"Succeeded","status":"False","type":"Running"},{"lastTransitionTime":"2026-11-01T00:00:00.000Z",'
    b'"message":"all 1 ranks succeeded","observedGeneration":1,"reason":"Succeeded","status":"True",'
    b'"type":"Finished"}],"cores":32,"delays":{"began":"2026-11-01T00:00:00.000Z","doing":"Ended","heldSeconds":0,'
    b'"runSeconds":0,"since":"2026-11-01T00:00:00.000Z","waits":[]},"disruptions":0,"failures":0,"gpus":8,'
    b'"launchTime":"2026-11-01T00:00:00.000Z","message":"all 1 ranks succeeded","observedGeneration":1,'
    b'"phase":"Succeeded","queuedTime":"2026-11-01T00:00:00.000Z","reason":"Succeeded","request":{'
    b'"cpusPerReplica":32,"nodeSelector":{},"nodeSelectorTerms":[],"priority":0,"quota":{"count/pods":"1","cpu":"32",'
    b'"limits.cpu":"32","memory":"8589934592","pods":"1","requests.cpu":"32","requests.memory":"8589934592",'
    b'"requests.nvidia.com/gpu":"8"},"resources":{"cpu":"32","memory":"8589934592","nvidia.com/gpu":"8"},'
    b'"scopes":{"priorityClassName":"","terminating":false},"tolerations":[{"key":"coda.scheduler/pool","operator":"Exists"},{"effect":"NoExecute",'
    b'"key":"node.kubernetes.io/not-ready","operator":"Exists"},{"effect":"NoExecute",'
    b'"key":"node.kubernetes.io/unreachable","operator":"Exists"}]},"startTime":"2026-11-01T00:00:00.000Z",'
    b'"waitingSince":"2026-11-01T00:00:00.000Z"}}'
)
_WORDS: Final = _SOMETIMES + _USUALLY
"""What equals these takes almost no space; what is nearer to the end, the least."""


def packed_job(job: Json) -> bytes:
    """Return the job as bytes. Of a finished one only what may still matter is kept."""
    kept = _without_finished_parts(job)
    text = orjson.dumps(kept)
    if kept is job:
        return bytes(bytearray(text))  # orjson's own bytes occupy several times their length
    packer = zlib.compressobj(_LEVEL, zdict=_WORDS)
    return packer.compress(text) + packer.flush()


def unpacked_job(packed: bytes) -> Json:
    """Return the job that was packed."""
    text = packed if packed.startswith(_JSON) else zlib.decompressobj(zdict=_WORDS).decompress(packed)
    job: Json = orjson.loads(text)
    return job


class KnownJob(dict[str, Any]):
    """What a cache needs of a job, its phase and its failed attempts, as if it were JSON of nothing else.

    There may be 100 000 of them. Of a finished one the failed attempts are not kept. Why it is not accepted yet, or
    backs off, is kept only while it does."""

    __slots__ = ("_back_off", "_failed", "_key", "_phase", "_version", "uid")

    def __init__(self, job: Json) -> None:
        super().__init__()
        metadata = job["metadata"]
        self.uid = sys.intern(f"{metadata['namespace']}/{metadata['uid']}")  # a map has it, too
        self._key = key_of(job)
        self._version = version_of(job)
        status = job.get("status") or {}
        phase = status.get("phase")
        self._phase = sys.intern(phase) if phase is not None else None
        failed = status.get("failures") or 0, status.get("disruptions") or 0
        self._failed = failed if any(failed) and not self.is_finished else _NONE_FAILED
        self._back_off = _back_off_of(status)

    @property
    def is_finished(self) -> bool:
        """True if its phase is one that nothing follows."""
        return self._phase in FINISHED_PHASES

    def __bool__(self) -> bool:
        return True

    def get(self, name: str, default: Any = None) -> Any:
        """As a dict's, but for the parts that are made when they are asked for."""
        try:
            return self[name]
        except KeyError:
            return default

    def __missing__(self, name: str) -> Json:
        if name == "metadata":
            namespace, _, job = self._key.partition("/")
            uid = self.uid.removeprefix(f"{namespace}/")
            return {"name": job, "namespace": namespace, "uid": uid, "resourceVersion": str(self._version)}
        if name == "status":
            failed = zip(("failures", "disruptions"), self._failed, strict=True)
            return {"phase": self._phase} | {name: count for name, count in failed if count} | dict(self._back_off)
        raise KeyError(name)


def _back_off_of(status: Json) -> tuple[tuple[str, Any], ...]:
    """What says why a job waits after attempts in a row that were ended from outside, or is not accepted; else none."""
    phase, in_a_row = status.get("phase"), status.get("disruptionsInARow") or 0
    if phase is None and status.get("reason"):
        return (("reason", sys.intern(status["reason"])),)
    if phase not in _BACKS_OFF or not in_a_row:
        return ()
    reason, until = sys.intern(str(status.get("reason") or "")), status.get("notBefore")
    return ("reason", reason), ("disruptionsInARow", in_a_row), ("notBefore", until)


def _without_finished_parts(job: Json) -> Json:
    """Return a finished job without what nothing reads again: template, placement, progress, tuning, most annotations.

    A refused template stays: it may be edited. What tuning found stays until the job's record is stored, and so does
    how long its pods may take to end."""
    status = job.get("status") or {}
    if status.get("phase") not in FINISHED_PHASES or status.get("reason") == TEMPLATE_REFUSED:
        return job
    is_held = FINALIZER in (job["metadata"].get("finalizers") or ())
    unread = ("placement", "progress") if is_held else ("placement", "progress", "tuning")
    return job | {
        "metadata": {name: field for name, field in job["metadata"].items() if name != "annotations"} | _notes(job),
        "spec": {name: field for name, field in job["spec"].items() if name != "template"} | _grace(job, is_held),
        "status": {name: field for name, field in status.items() if name not in unread},
    }


def _grace(job: Json, is_held: bool) -> Json:
    pod = (job["spec"].get("template") or {}).get("spec") or {}
    grace_s = pod.get("terminationGracePeriodSeconds") if is_held else None
    return {} if grace_s is None else {"template": {"spec": {"terminationGracePeriodSeconds": grace_s}}}


def _notes(job: Json) -> Json:
    kept = ANNOTATIONS_OF_TOOLS | {ANNOTATION_USER}
    notes = {name: text for name, text in (job["metadata"].get("annotations") or {}).items() if name in kept and text}
    return {"annotations": notes} if notes else {}


def pod_of_job(pod: Json) -> Json:
    """Return what a cache holds of a pod: its name, and whose it is."""
    kept = metadata_only(pod)
    kept["metadata"]["labels"] = {LABEL_JOB_UID: pod["metadata"]["labels"][LABEL_JOB_UID]}
    return kept
