"""From the logs and ends of a job's ranks to the root cause.

Each line that a rule matches is an incident; the lines of one Python traceback, with the tracebacks chained to it, are
one incident together. Every incident has the kind of its best rule. The root is the earliest incident of the highest
kind: a cause before a crash without one, that before what peers say, and that before a bare traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from coda.diagnosis.incidents import Incident, incidents_of
from coda.diagnosis.log_lines import LogLines
from coda.diagnosis.masking import masked
from coda.diagnosis.reasons import FACTS, Reason, Retry
from coda.diagnosis.rules import EXPLICIT, Rule, RuleBook, built_in_rules
from coda.diagnosis.xids import XIDS, SeenXid, XidKind, heaviest, kind_of, xid_text
from coda.wording import without_controls

Found = tuple[Incident, int | None]
"""An incident, and the rank whose log shows it."""
EVIDENCE_CHARS: Final = 400
_KEPT: Final = 8  # incidents of the highest kind, the first ones


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLog:
    """The end of what one rank printed. `rank`: None if the log is of several ranks, or nobody knows.

    A rank has a process per GPU: the numbers that its lines name count these, and are no ranks of the job."""

    log: bytes
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a rank ended, as the platform says: exit code, and what Kubernetes or the node's agent says about it."""

    exit_code: int | None = None
    said: tuple[str, ...] = ()
    rank: int | None = None
    xids: tuple[SeenXid, ...] = ()  # that the node's agent saw on the GPUs of this rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a job failed. `rank`: whose log or end shows it; of a log that is nobody's, the number that its line names.

    `line`: number of the evidence in its log from 1, or None if it is no line of a log."""

    reason: Reason
    sub_reason: str = ""
    explicit: bool = False
    rank: int | None = None
    line: int | None = None
    evidence: str = ""
    retry: Retry = Retry.YES
    advice: str = ""
    rule: str = ""
    xid: int | None = None  # that the node's agent saw on a GPU of this rank, whatever decided

    @property
    def category(self) -> str:
        """IF, AE or U, as in Table 6; several with `/`."""
        return FACTS[self.reason].category


def classify(logs: Sequence[RankLog], ends: Sequence[End] = (), rules: RuleBook | None = None) -> Diagnosis:
    """Return the root cause. It never fails: with nothing known the reason is `No signature`.

    Ties: the earlier time stamp where all have one, else the order of `logs`. O(bytes), at most a mebibyte each."""
    book = rules or built_in_rules()
    return conclude([found for log in logs for found in examine(log, book)], ends, book)


def beside_others(found: Diagnosis, *, on_seats: bool) -> Diagnosis:
    """Return the diagnosis of a job whose GPUs others may have had memory of.

    `on_seats`: it is a guest itself, which Coda limits for others; else opportunistic jobs were on its nodes. These
    may have held the GPU memory that it lacked: nothing proves that it fails the same way again."""
    if found.reason is not Reason.GPU_MEMORY or found.retry not in (Retry.NO, Retry.OTHER_NODE):
        return found
    held = "others on its GPU may have needed" if on_seats else "opportunistic jobs on its node may have held"
    advice = f"{held} the memory; if it fails so without them, {found.advice}"
    return replace(found, retry=Retry.YES, advice=advice)


def examine(log: RankLog, rules: RuleBook | None = None) -> list[Found]:
    """Return what may decide of one log: the slow part of `classify`, for callers that must not keep many logs."""
    incidents = incidents_of(LogLines(log.log), rules or built_in_rules())
    highest = max((incident.kind for incident in incidents), default=0)
    best = [(incident, log.rank) for incident in incidents if incident.kind == highest]
    lasting = [entry for entry in best if not entry[0].survived]
    return (lasting or best)[:_KEPT]


def conclude(found: Sequence[Found], ends: Sequence[End] = (), rules: RuleBook | None = None) -> Diagnosis:
    """Return the root cause among what the logs show and how the ranks ended.

    Nothing is the cause if every rank is known to have ended well. What the program survived is one only if it is
    known to have failed. An Xid of faulty hardware decides over every log, the lowest rank's first; one that a program
    may cause decides where the logs name no cause, or only that the GPU failed."""
    if ends and all(end.exit_code == 0 and not end.said for end in ends):
        return _nothing_known(())
    return _weighed(_by_words(found, ends, rules or built_in_rules()), ends)


def _by_words(found: Sequence[Found], ends: Sequence[End], book: RuleBook) -> Diagnosis:
    """Return the root cause by what was printed, and by what Kubernetes says."""
    failed = any(end.exit_code or end.said for end in ends)
    known = [entry for entry in found if failed or not entry[0].survived]
    for end in ends:
        said = LogLines("\n".join(end.said).encode(errors="replace"))
        known += [(replace(incident, line=None), end.rank) for incident in incidents_of(said, book)]
    coded = [(incident, end.rank) for end in ends if (incident := _incident_of_code(end, book)) is not None]
    known += coded
    if not known:
        return _nothing_known(ends)
    highest = max(incident.kind for incident, _ in known)
    best = [entry for entry in known if entry[0].kind == highest]
    lasting = [entry for entry in best if not entry[0].survived]
    named = [entry for entry in lasting if book.rules[entry[0].rule].reason is not Reason.NO_SIGNATURE]
    best = named or [entry for entry in best if entry[0].survived] or lasting
    if all(incident.time for incident, _ in best):
        best.sort(key=lambda entry: entry[0].time)
    incident, rank = best[0]
    rule = book.rules[incident.rule]
    if best[0] in coded:  # a line that says why it is that code; the two together leave no doubt
        for shown, of in found:
            if book.rules[shown.rule].reason is rule.reason and not shown.survived:
                return replace(_diagnosis(book.rules[shown.rule], shown, of), explicit=True)
    return _diagnosis(rule, incident, rank)


def _weighed(words: Diagnosis, ends: Sequence[End]) -> Diagnosis:
    """Return the root cause by the words and by what the driver reported.

    Of a gang, the rank whose hardware failed is the root. Else only what was seen on the GPUs of the rank that the
    words name counts: a peer may have had an error of its own."""
    broken = [(end.rank or 0, one, end) for end in ends for one in end.xids if kind_of(one.xid) is XidKind.HARDWARE]
    if broken:
        _, seen, end = min(broken, key=lambda entry: entry[:2])
        return _diagnosis_of_xid(seen, end.rank)
    own = [one for end in ends if words.rank in (None, end.rank) for one in end.xids]
    last = heaviest(own)
    if last is None:
        return words
    facts = XIDS[last.xid]
    is_vague = not words.explicit or (facts.kind is XidKind.PROGRAM and words.reason is Reason.CUDA)
    rank = next(end.rank for end in ends if last in end.xids)
    return _diagnosis_of_xid(last, rank) if is_vague else replace(words, xid=last.xid)


def _diagnosis_of_xid(seen: SeenXid, rank: int | None) -> Diagnosis:
    facts = XIDS[seen.xid]
    by_reason = FACTS[facts.reason]
    return Diagnosis(
        reason=facts.reason,
        sub_reason=f"Xid {seen.xid}",
        explicit=True,
        rank=rank,
        evidence=f"the node's agent saw {xid_text(seen)}",
        retry=by_reason.retry,
        advice=by_reason.advice,
        rule="xid",
        xid=seen.xid,
    )


def _diagnosis(rule: Rule, incident: Incident, rank: int | None) -> Diagnosis:
    return Diagnosis(
        reason=rule.reason,
        sub_reason=rule.sub_reason,
        explicit=rule.kind in EXPLICIT and (incident.survived or incident.kind in EXPLICIT),
        rank=incident.rank if rank is None else rank,
        line=None if incident.line is None else incident.line + 1,
        evidence=masked(without_controls(incident.text))[:EVIDENCE_CHARS],
        retry=rule.retry,
        advice=rule.advice,
        rule=rule.name,
    )


def _nothing_known(ends: Sequence[End]) -> Diagnosis:
    facts = FACTS[Reason.NO_SIGNATURE]
    first = next((end for end in ends if end.exit_code), None)
    evidence = "" if first is None else f"exit code {first.exit_code}"
    return Diagnosis(
        reason=Reason.NO_SIGNATURE,
        rank=first.rank if first else None,
        evidence=evidence,
        retry=facts.retry,
        advice=facts.advice,
    )


def _incident_of_code(end: End, book: RuleBook) -> Incident | None:
    """Return what an exit code alone says: rules match it as the line `exit code N`."""
    if not end.exit_code:
        return None
    found = next(iter(incidents_of(LogLines(f"exit code {end.exit_code}".encode()), book)), None)
    return None if found is None else replace(found, line=None)
