"""Lines that only mention a failure: reports that all is well, what a program is prepared for, texts that it quotes.

Asked where a mistake costs most: what a node, a peer or an eviction is to blame for is free for the job.
"""

from __future__ import annotations

import re
from typing import Final

from coda.diagnosis.log_lines import Line, Severity
from coda.diagnosis.reasons import Reason, Retry
from coda.diagnosis.rules import Kind, Rule

_RAISED: Final = re.compile(r"(?:[\w.]{1,120}\.)?[A-Z]\w{0,80}(?:Error|Exception|Exit|Interrupt|Expired|Warning)\b")
_REPORTED: Final = re.compile(r"(?:[a-z_]\w{0,60}+\.){1,8}+[A-Z]\w{1,80}+(?:: |$)")
"""How Python names an exception of any class that is not built in."""
_WELL: Final = re.compile(
    r"\bno [\w -]{0,30}(?:errors?|failures?|problems?|issues?)\b|\b(?:errors?|failures?)\b\W{1,3}(?:0|none|no)\b"
    r"|\b(?:0|zero|without) (?:\w{1,20} ){0,3}(?:errors?|failures?)\b|\b(?:passed|healthy)\b"
    r"|[:=] {0,40}(?:false|none|no|ok|n/a|0)$",
    re.IGNORECASE,
)
_PREPARED: Final = re.compile(
    r"\b(?:enabled|disabled|watcher|watching|listener|listening|polling|registered|installed|max_restarts|whenever)\b"
    r"|^\+{1,4} |\btrap\b|\btimeout[ =:]{1,3}\d"
    r"|\b(?:when|if|on|upon|in case of) (?:\w{1,12} ){0,3}"
    r"(?:sigterm|nodelost|preempt|evict|spot|terminat|interrupt|nccl)",
    re.IGNORECASE,
)
_WENT_AWAY: Final = re.compile(
    r"error|fail|lost|timed out|timeout|closed|died|abort|refused|unreachable|unavailable|unexpected|disconnect"
    r"|terminat|gone|stall|missed|down\b|reset|hang|stuck|exceeded|respond|no route|dump|crash|broken",
    re.IGNORECASE,
)
"""Words of which one is in a line that says of a peer what happened to it."""
_STATED: Final = re.compile(
    r"(?:\[[^\]]{1,60}\] {0,2}|\S{1,60}: {1,4}|what\(\): {1,4}|\*{3} ){0,4}(?:\w{1,30} ){0,2}"
    r"(?:\w{0,20}(?:error|fatal|fail)|unable|cannot|can.t|could|nvrm|xid|unhandled|unexpected|uncorrectable|gpu|dbe"
    r"|row remap|device|the gpu|no\b|cuda|cu[a-z]{3,9}|nvml|nvidia|nccl|hip|hsa|miopen|rocblas|triton|pcie|aer)",
    re.IGNORECASE,
)
"""How a line begins that states a failure of a GPU, behind labels and up to two words. Quotes do not begin so."""


def is_raised(line: Line) -> bool:
    """True if a line is an exception as its language reports it, or one that its program calls an error."""
    return bool(line.level is Severity.ERROR or _RAISED.match(line.text) or _REPORTED.match(line.text))


def names_exception(text: str) -> bool:
    """True if a text begins with the name of an exception."""
    return _RAISED.match(text) is not None


def only_mentions(line: Line, rule: Rule, *, is_alone: bool) -> bool:
    """True if a line that a rule of others' faults matches does not say that it happened. O(its characters).

    `is_alone`: it belongs to no traceback."""
    if rule.is_added or not _blames_others(rule) or is_raised(line) or "NVRM: Xid" in line.text:
        return False
    if _WELL.search(line.text) or _PREPARED.search(line.text):
        return True
    if is_alone and rule.kind is Kind.PEER:
        return line.level is Severity.INFO or not _WENT_AWAY.search(line.text)
    return is_alone and rule.reason in (Reason.ECC, Reason.CUDA) and not _STATED.match(line.text)


def _blames_others(rule: Rule) -> bool:
    is_free = rule.retry is Retry.OTHER_NODE or (rule.reason is Reason.PREEMPTED and rule.retry is Retry.YES)
    return is_free and rule.kind in (Kind.PEER, Kind.WEAK, Kind.CAUSE)
