"""Jobs as bytes: a tenth of the parsed size, in one piece. Finished ones stay for weeks and are compressed as well."""

from __future__ import annotations

import sys
import zlib
from typing import Any, Final

import orjson

from coda.lifecycle import TEMPLATE_REFUSED
from coda.model import FINISHED
from coda_kube.api.watch_cache import key_of, version_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_USER, FINALIZER

FINISHED_PHASES: Final = frozenset(phase.value for phase in FINISHED)

_LEVEL: Final = 6
_NONE_FAILED: Final = (0, 0)
_JSON: Final = b"{"  # how a job begins that is not compressed; zlib's bytes never begin so

_WORDS: Final = (  # a finished job as it usually is: what equals it takes almost no space
    b'"nodeSelectorTerms":[],"tolerations":[{"key":"nvidia.com/gpu","operator":"Exists","effect":"NoSchedule"}],'
    b'"quota":{"requests.nvidia.com/gpu":"requests.cpu":"requests.memory":"limits.cpu":"pods":"count/pods":'
    b'"conditions":[{"type":"Failed","status":"True","reason":"message":"lastTransitionTime":"2026-01-01T00:00:00.000Z"},'
    b'"avoidNodes":[{"name":"node-0","until":"resize":{"attempt":1,"sequence":"cores":"ended":'
    b'"ownerReferences":[{"apiVersion":"controller":true,"blockOwnerDeletion":true,"labels":{"app.kubernetes.io/name":'
    b'"hints":{"pipelined":true,"manyWeights":true,"complexProcessing":true},"category":"NLP","locality":{"required":"rack"},'
    b'"activeDeadlineSeconds":86400,"deletionTimestamp":"deletionGracePeriodSeconds":0,'
    b'{"apiVersion":"coda.scheduler/v1alpha1","kind":"TrainingJob","metadata":{"name":"namespace":"team-","uid":"'
    b'-4000-8000-","resourceVersion":"generation":1,"creationTimestamp":"2026-11-01T00:00:00Z",'
    b'"finalizers":["coda.scheduler/pods"]},"spec":{"replicas":1,"gpusPerReplica":8,"cpusPerReplica":"auto","retries":3,'
    b'"startDeadlineSeconds":1800,"successPolicy":"AllRanks","suspend":false,"ttlSecondsAfterFinished":604800},'
    b'"status":{"phase":"Failed","phase":"Succeeded","attempt":1,"failures":0,"disruptions":0,"observedGeneration":1,'
    b'"gpus":8,"reason":"","message":"","queuedTime":"2026-11-01T00:00:00.000Z","launchTime":"startTime":"completionTime":"'
    b'"request":{"resources":{"cpu":"32","memory":"64Gi","nvidia.com/gpu":"8"},"cpusPerReplica":32,"priority":0}}}'
)


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

    There may be 100 000 of them. Of a finished one the failed attempts are not kept."""

    __slots__ = ("_failed", "_key", "_phase", "_version", "uid")

    def __init__(self, job: Json) -> None:
        super().__init__()
        metadata = job["metadata"]
        self.uid = f"{metadata['namespace']}/{metadata['uid']}"
        self._key = key_of(job)
        self._version = version_of(job)
        status = job.get("status") or {}
        phase = status.get("phase")
        self._phase = sys.intern(phase) if phase is not None else None
        failed = status.get("failures") or 0, status.get("disruptions") or 0
        self._failed = failed if any(failed) and not self.is_finished else _NONE_FAILED

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
            return {"phase": self._phase} | {name: count for name, count in failed if count}
        raise KeyError(name)


def _without_finished_parts(job: Json) -> Json:
    """Return a finished job without what nothing reads again: template, placement, progress, tuning, annotations.

    A refused template stays: it may be edited. What tuning found stays until the job's record is stored."""
    status = job.get("status") or {}
    if status.get("phase") not in FINISHED_PHASES or status.get("reason") == TEMPLATE_REFUSED:
        return job
    is_held = FINALIZER in (job["metadata"].get("finalizers") or ())
    unread = ("placement", "progress") if is_held else ("placement", "progress", "tuning")
    return job | {
        "metadata": {name: field for name, field in job["metadata"].items() if name != "annotations"} | _stamp(job),
        "spec": {name: field for name, field in job["spec"].items() if name != "template"},
        "status": {name: field for name, field in status.items() if name not in unread},
    }


def _stamp(job: Json) -> Json:
    stamp = (job["metadata"].get("annotations") or {}).get(ANNOTATION_USER)
    return {"annotations": {ANNOTATION_USER: stamp}} if stamp else {}
