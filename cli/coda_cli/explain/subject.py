"""What a name on the command line means: `coda queue`, kubectl and people write it differently."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote

from coda.errors import InvalidInput
from coda.wording import listed
from coda_kube.api.client import Client, NotFound, NotServed, Rejected
from coda_kube.objects.json_types import Json

KINDS: Final = ("trainingjob", "tj", "job", "replicaset", "statefulset", "pod")

_TRAINING_JOB: Final = ""
_KIND_BY_WORD: Final = {
    **dict.fromkeys(("trainingjob", "trainingjobs", "tj"), _TRAINING_JOB),
    **dict.fromkeys(("job", "jobs"), "job"),
    **dict.fromkeys(("replicaset", "replicasets", "rs"), "replicaset"),
    **dict.fromkeys(("statefulset", "statefulsets", "sts"), "statefulset"),
    **dict.fromkeys(("pod", "pods", "po"), "pod"),
}
_READ: Final = {
    "job": ("Job", "/apis/batch/v1", "jobs"),
    "replicaset": ("ReplicaSet", "/apis/apps/v1", "replicasets"),
    "statefulset": ("StatefulSet", "/apis/apps/v1", "statefulsets"),
    "pod": ("Pod", "/api/v1", "pods"),
}
_OTHERS: Final = frozenset(
    f"{kind}{plural}"
    for kind in ("node", "deployment", "daemonset", "cronjob", "service", "virtualcluster", "nodeprofile", "arrayquota")
    for plural in ("", "s")
) | {"no", "deploy", "ds", "cj", "svc", "vc", "np", "aq"}
"""Kinds that people may try, and that have no lines in the queue; any other word is a namespace."""


class Subject(NamedTuple):
    """What is asked about. `kind`: in lower case; empty for a TrainingJob."""

    namespace: str
    kind: str
    name: str

    @property
    def line_name(self) -> str:
        """Return its name as `coda queue` prints it."""
        return "/".join(part for part in self if part)

    @property
    def is_training(self) -> bool:
        """True for a TrainingJob."""
        return self.kind == _TRAINING_JOB


def subject_of(text: str, namespace: str) -> Subject:
    """Read NAME, KIND/NAME, NAMESPACE/NAME or NAMESPACE/KIND/NAME. Kinds may be written as kubectl does: `job.batch`.

    `namespace`: that of a name without one. Before a single slash, a kind that is known wins over a namespace
    (`in_namespace_of_kind` is the other reading). Raises InvalidInput for a kind that has no lines in the queue."""
    *before, name = text.split("/", 2)
    if not before:
        return Subject(namespace, _TRAINING_JOB, name)
    word = before[-1].lower().partition(".")[0]
    kind = _KIND_BY_WORD.get(word)
    if len(before) == 2:
        return Subject(before[0], word if kind is None else kind, name)
    if kind is not None:
        return Subject(namespace, kind, name)
    if not name or word in _OTHERS or "." in before[0]:  # no namespace has a dot
        raise InvalidInput(f"{text}: write NAME of a TrainingJob, or one of {listed(KINDS)} before the slash")
    return Subject(before[0], _TRAINING_JOB, name)


def in_namespace_of_kind(text: str) -> Subject | None:
    """Read NAMESPACE/NAME where the namespace is called as a kind is; None for every other text.

    `coda queue` prints such a name of a TrainingJob, and cannot know how its reader takes it."""
    word, _, name = text.partition("/")
    is_kind = word in _KIND_BY_WORD or word in _OTHERS
    return Subject(word, _TRAINING_JOB, name) if is_kind and name and "/" not in name else None


async def read_subject(client: Client, subject: Subject) -> Json | None:
    """Return the object itself; None for a kind that is not known here, and for who may not read it.

    Raises InvalidInput if it is not there."""
    if subject.kind not in _READ:
        return None
    kind, group, plural = _READ[subject.kind]
    try:
        return await client.get(f"{group}/namespaces/{subject.namespace}/{plural}/{quote(subject.name, safe='')}")
    except (NotFound, NotServed) as error:
        raise InvalidInput(f"there is no {kind} {subject.name} in namespace {subject.namespace}") from error
    except Rejected:
        return None
