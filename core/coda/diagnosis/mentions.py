"""Lines that only mention a failure: reports that all is well, what a program is prepared for, texts that it quotes.

Asked where a mistake costs most: what a node, a peer or an eviction is to blame for is free for the job.
"""

from __future__ import annotations

import re
from typing import Final

from coda.diagnosis.log_lines import Line, Severity
from coda.diagnosis.reasons import Reason, Retry
from coda.diagnosis.rules import Kind, Rule, RuleBook

_RAISED: Final = re.compile(r"(?:[\w.]{1,120}\.)?[A-Z]\w{0,80}(?:Error|Exception|Exit|Interrupt|Expired|Warning)\b")
_REPORTED: Final = re.compile(r"(?:[a-z_]\w{0,60}+\.){1,8}+[A-Z]\w{1,80}+(?:: |$)")
"""How Python names an exception of any class that is not built in."""
_CLAUSE: Final = re.compile(r"(?:[^,;|().]|\.(?! ))+")
_SHELL: Final = re.compile(r"(?:\+{1,4}|trap) ")
"""What a shell is told to do, as `set -x` prints it."""
_NAME: Final = re.compile(
    r"\b(rank|gpu|device|cuda|worker|node|task|peer|replica|process)[ :=]{1,3}\d{1,6}", re.IGNORECASE
)
"""A number that names who failed: it counts no failures."""
_ALL_WELL: Final = re.compile(
    r"\b(?:errors|failures)\W{1,3}(?:0|none)\b|\b(?:check|test)\w* passed\b|(?<!is )(?<!be )\benabled$"
    r"|[:=][ '\"]{0,40}(?:false|none|no|ok|n/a|0|on|off)\W{0,3}$",
    re.IGNORECASE,
)
"""A clause that says how well something is, or how it is set."""
_HARMLESS: Final = re.compile(
    r"\b(?:no|without) (?:[\w-]{1,20} ){0,3}(?:errors?|failures?|xids?)\b"
    r"|\b(?:0|zero) (?:[\w-]{1,20} ){0,3}(?:errors|failures)\b"
    r"|(?:[\w-]{1,20} ){1,4}watcher\b"
    r"|\b(?:if|(?<!ed )(?<!ing )(?<!down )(?:when|on|upon)) (?:\w{1,12} ){0,3}'?"
    r"(?:sigterm|nodelost|preempt|evict|spot|terminat|nccl)[^:]*",
    re.IGNORECASE,
)
"""A part of a clause that says what did not happen, or what is done if it does."""
_WENT_AWAY: Final = re.compile(
    r"error|fail|lost|timed out|timeout(?![ =:]{1,3}\d)|closed|died|abort|refused|unreachable|unavailable"
    r"|unexpected|disconnect|terminat|gone|stall|missed|down\b|reset|hang|stuck|exceeded|respond|not ?ready|no route"
    r"|dump|crash|broken",
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
_ENDED: Final = re.compile(
    r"abort|panicked|\b(?:err|raised|because|stopped|gpu x)\b|\): |[:=(] {0,4}(?:cuda_error_|cudaerror)", re.IGNORECASE
)
"""What else is in a line that states one: what followed from it, or a driver's constant that is no word of prose."""


def is_raised(line: Line) -> bool:
    """True if a line is an exception as its language reports it, or one that its program calls an error."""
    return bool(line.level is Severity.ERROR or _RAISED.match(line.text) or _REPORTED.match(line.text))


def names_exception(text: str) -> bool:
    """True if a text begins with the name of an exception."""
    return _RAISED.match(text) is not None


def only_mentions(line: Line, number: int, book: RuleBook, *, is_alone: bool) -> bool:
    """True if a line that a rule of others' faults matches does not say that it happened. O(its characters).

    `number`: of the rule in its book. `is_alone`: the line belongs to no traceback."""
    rule = book.rules[number]
    if rule.is_added or not _blames_others(rule) or is_raised(line) or "NVRM: Xid" in line.text:
        return False
    rest = _without_harmless(line.text)
    if rest != line.text and not book.probes.is_matched(number, rest):
        return True
    if is_alone and rule.kind is Kind.PEER:
        is_info = line.level is Severity.INFO and "UNAVAILABLE: " not in line.text
        return is_info or not _WENT_AWAY.search(rest)
    is_gpu = is_alone and rule.reason in (Reason.ECC, Reason.CUDA)
    return is_gpu and not _STATED.match(rest) and not _ENDED.search(rest)


def _without_harmless(text: str) -> str:
    """Return a text without what it says of no failure: such words hide their own clause, and no other."""
    return "" if _SHELL.match(text) else _CLAUSE.sub(_what_is_left, _NAME.sub(r"\1 x", text))


def _what_is_left(clause: re.Match[str]) -> str:
    return "" if _ALL_WELL.search(clause[0]) else _HARMLESS.sub("", clause[0])


def _blames_others(rule: Rule) -> bool:
    is_free = rule.retry is Retry.OTHER_NODE or (rule.reason is Reason.PREEMPTED and rule.retry is Retry.YES)
    return is_free and rule.kind in (Kind.PEER, Kind.WEAK, Kind.CAUSE)
