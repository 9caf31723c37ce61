"""What one job cannot do to the others: an error in judging it refuses that job alone.

The error is a bug of ours. It is reported with its traceback, and the jobs that nobody can judge wait with a reason
that names the field that is out of the ordinary.
"""

from __future__ import annotations

import traceback
from typing import Final

from coda.cache.gang_class import GangClass
from coda.model.decision import Fault, WaitCode, WaitReason
from coda.model.job import Job
from coda.model.resources import MAIN, amount_of

_MOST: Final = 2**63 - 1  # of anything, in Kubernetes


def undecidable(job: Job, error: Exception) -> WaitReason:
    """Return the reason of a job that cannot be judged."""
    said = " ".join(f"{type(error).__name__}: {error}".split())[:120]
    message = f"Coda cannot judge it ({said}): look at {_field_to_blame(job)}; the other jobs are not affected"
    return WaitReason(code=WaitCode.UNDECIDABLE, message=message)


def refuse_class(gang_class: GangClass, error: Exception) -> Fault:
    """Refuse every job of the class from now on."""
    gang_class.fault = undecidable(gang_class.job, error)
    return Fault(jobs=tuple(queued.job.id for queued in gang_class.queued_jobs), traceback=text_of(error))


def text_of(error: Exception) -> str:
    """The traceback, in one text."""
    return "".join(traceback.format_exception(error, limit=-12))


def _field_to_blame(job: Job) -> str:
    """The first field that is out of the ordinary, as the user knows it."""
    try:
        request = job.request
        for name in (*MAIN, *request.other):
            amount = amount_of(request, name)
            if type(amount) is not int or not 0 <= amount <= _MOST * 1000:
                return f"the {name} that its pods ask for"
        terms = job.constraints.terms
        if len(terms) > 64 or any(len(term.labels) + len(term.fields) > 64 for term in terms):
            return "its node affinity"
    except Exception:  # whatever is wrong with it, the job must be refused
        return "its pod template"
    return "its pod template"
