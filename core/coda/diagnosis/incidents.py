"""The incidents of one log: which lines prove what, and which of them belong together."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from coda.diagnosis.log_lines import LogLines, Severity
from coda.diagnosis.mentions import is_raised, names_exception, only_mentions
from coda.diagnosis.reasons import Reason, Retry
from coda.diagnosis.rules import Kind, Rule, RuleBook
from coda.diagnosis.search import Work, matching_rules

_MOST_MARKS: Final = 600  # tracebacks and the words between them; of more, the first and the last
_LONGEST_TRACEBACK: Final = 300
_MOST_READ: Final = 1500  # lines that are read for the ends of all tracebacks
_AFTER: Final = 20  # lines after an exception's own that still belong to its message
_NEAR: Final = 12  # lines around a line without a traceback in which `within` is searched
_PROGRESS_SHAPE: Final = re.compile("epoch|step|loss|iter|acc|batch|its|sit|eta|sample|reward|score|^$")
_ENOUGH_PROGRESS: Final = 8  # lines of progress after a failure: the program went on
_SOME_PROGRESS: Final = 3  # between two failures of one rank: it went on after the first
_MOST_PROGRESS: Final = 64  # the last ones of a log
_ENOUGH_ORDINARY: Final = 200  # lines that say nothing bad: so many behind a failure, and the program went on
_UNWELL: Final = re.compile(
    r"error|exception|traceback|fail|abort|kill|signal|warn|fatal|assert|core|stack|debug|note"
    r"|^(?:file|frame|at[a-z]|x?[a-f]*$|ncclinfo|raise|return|self)"
)
_LAST_LINES: Final = 2000  # of a log in which progress and ordinary lines are counted
_SURE: Final = 12  # a rule of this weight is believed in any line; others need a traceback or a word for an error
_SURE_WARNING: Final = 20  # a warning counts from this weight on; one that is not Python's also if it says "failed"
_GOES_ON: Final = re.compile(
    r"ignor(?:ed|ing)\b|skipp(?:ed|ing)\b|disabl(?:ed|ing)\b|fall(?:s|ing)? ?back|using .{1,80} instead|continuing\b"
    r"|will (?:retry|be retried|try|continue|use|be ignored)|retry(?:ing)? in|, (?:trying|retrying|rebuilding)\b"
    r"|using (?:the )?default|non-fatal|not fatal|harmless",
    re.IGNORECASE,
)
"""What a program says of a mishap that it has dealt with."""
_GIVES_UP: Final = re.compile(r"(?<!non-)(?<!not )\bfatal\b|stopping|exiting|abort|giving up|terminat", re.IGNORECASE)
_FAILED: Final = re.compile("error|fail|exception|denied|refused|killed|timed out|lost", re.IGNORECASE)
_ERROR: Final = re.compile(
    r"error|exception|fail|fatal|panic|critical|abort|assert|cannot|can't|unable|warn |caused by|what\(\):|no such"
    r"|not found|denied|refused|invalid|illegal|corrupt|killed|timed out|mismatch|undefined|unrecognized|unexpected"
    r"|deadline exceeded|out of memory|could not|couldn't|please|must|missing|required|not a valid|too old"
    r"|unsupported|not supported|throw|not exist|incompatib|not compatible|not match|needs to have|nvrm: xid"
    r"|(?-i:[A-Z]{3,20}_[A-Z]{3,20}: )",
    re.IGNORECASE,
)
_CAME: Final = re.compile(r"error: |\b(?:received|caught|got|was|by|due to)\b", re.IGNORECASE)
"""Words of which one is in a line that says of an eviction that it came."""
_RAISED_SHAPE: Final = re.compile("error|exception|exit|interrupt|expired|warning")
_FRAME: Final = re.compile(r'File ".{1,400}", line \d{1,9}')
_FRAME_SHAPE: Final = re.compile("[a-z]{0,12}file(?!notfound|exists)[a-z]{0,300}line")
_CODE: Final = re.compile(
    r"(?:raise|return|assert|except|if|elif|with|from|import|print|for|while|def|class|try|else|logger|warnings)\b"
    r"|[\w.\[\], ]{1,80} = |[~^]{2,}|[\w.]{1,80}\($"
)
_INSIDE: Final = re.compile(
    r"File |\.\.\.|\[|[│╭╰❱]|-{3,}|\d{1,6} |<ipython|Cell In|[~/][^ ]{1,200} in |Input In|\(\.\.\.\)|<__array"
)
_SHOWN_CODE: Final = re.compile(r"[│❱]|-{2,}> ?\d|\d{1,6} {2,}\S")  # by rich and IPython
_CHAIN_SHAPES: Final = (
    "duringhandlingoftheaboveexceptionanotherexceptionoccurred",
    "theaboveexceptionwasthedirectcauseofthefollowingexception",
)
_MARKS: Final = re.compile("tracebackmostrecentcalllast|exception")
_TRACEBACK_SHAPE: Final = "tracebackmostrecentcalllast"
_PROGRESS: Final = re.compile(
    r"(?:epoch|step|iter(?:ation)?|batch|loss|acc(?:uracy)?|sample|reward|score)s?\b.{0,40}\d|\d(?:it|s)/(?:s|it)\b"
    r"|\d{1,3}%\|",
    re.IGNORECASE,
)
_NOT_OF_THE_PROGRAM: Final = re.compile("loggingerror|exceptionignored")


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """What one line, or one chain of tracebacks, proves. `rule`: number in the book."""

    kind: int
    rule: int
    line: int | None
    rank: int | None
    time: str
    text: str
    survived: bool = False  # the program went on after it


@dataclass(slots=True)
class _Hit:
    line: int
    rule: int
    kind: int
    weight: int
    survived: bool = False


@dataclass(slots=True)
class _Chain:
    """Tracebacks that belong together: lines from `start` to `end`, without it."""

    start: int
    end: int
    rank: int | None


def incidents_of(lines: LogLines, book: RuleBook, work: Work | None = None) -> list[Incident]:
    """Return the incidents in the order of the log. `work` counts what was done."""
    hits = _hits(lines, book, work or Work())
    chains = _chains(lines)
    starts = [chain.start for chain in chains]
    best_by_group: dict[tuple[int, int], _Hit] = {}
    rest = _Rest(lines) if hits else None
    last_alone: dict[int | None, tuple[int, int]] = {}  # rank -> the last line without a traceback, and its group
    for hit in hits:
        chain = _chain_of(hit.line, lines, chains, starts)
        rule = book.rules[hit.rule]
        if rule.within and not _is_within(rule, hit.line, chain, lines):
            continue
        if only_mentions(lines.line(hit.line), hit.rule, book, is_alone=chain is None):
            continue
        hit.kind = _kind_of(hit, rule, lines) if chain is None else _kind_in(chain, hit, lines)
        if hit.kind == Kind.NOISE:
            continue
        last = hit.line if chain is None else max(hit.line, chain.end - _AFTER)
        if rest is not None and rest.goes_on_after(last, lines.line(hit.line).rank):
            if not _is_of_a_dead_gpu(hit, rule, lines) and (chain is None or not _is_uncaught(chain, lines)):
                continue
            hit.survived = True
        group = (0, _first_of(hit.line, last_alone, lines)) if chain is None else (1, chain.start)
        known = best_by_group.get(group)
        if known is None or _order(hit) > _order(known):
            best_by_group[group] = hit
    found = sorted(best_by_group.values(), key=lambda hit: hit.line)
    _mark_passed(found, lines, rest)
    return [_incident(hit, lines) for hit in found]


def _first_of(index: int, last: dict[int | None, tuple[int, int]], lines: LogLines) -> int:
    """Return the first line of the message that a line belongs to: lines next to each other are one message."""
    rank = lines.line(index).rank
    before, first = last.get(rank, (-9, -9))
    group = first if index - before <= 1 else index
    last[rank] = (index, group)
    return group


def _is_uncaught(chain: _Chain, lines: LogLines) -> bool:
    """True if a traceback begins in the main program: what stands behind it may have been printed before it."""
    return any(shape.endswith("inmodule") for shape in lines.shapes[chain.start + 1 : chain.start + 3])


def _is_of_a_dead_gpu(hit: _Hit, rule: Rule, lines: LogLines) -> bool:
    """True if an exception says that a GPU is lost or its memory broken: only others go on, or what is left of it."""
    is_broken = rule.reason is Reason.ECC or (rule.reason is Reason.CUDA and hit.weight >= _SURE_WARNING)
    return is_broken and hit.kind == Kind.CAUSE and names_exception(lines.line(hit.line).text)


def _mark_passed(hits: list[_Hit], lines: LogLines, rest: _Rest | None) -> None:
    """Mark what the same rank left behind it: it reported progress, and failed only later."""
    last_by_rank: dict[int | None, int] = {}
    for hit in reversed(hits):
        if hit.survived or hit.kind < Kind.WEAK or rest is None:
            continue
        rank = lines.line(hit.line).rank
        last = last_by_rank.setdefault(rank, hit.line)
        hit.survived = rest.progress_between(hit.line, last, rank) >= _SOME_PROGRESS


def _order(hit: _Hit) -> tuple[bool, int, int, int, int]:
    return not hit.survived, hit.kind, hit.weight, -hit.line, -hit.rule


def _kind_of(hit: _Hit, rule: Rule, lines: LogLines) -> int:
    """Return what a line proves that stands alone: little if nothing in it says that something failed."""
    line = lines.line(hit.line)
    if rule.is_added:
        return hit.kind
    if hit.kind < Kind.WEAK:
        return (
            hit.kind
            if line.level not in (Severity.INFO, Severity.PYTHON) or hit.kind > Kind.CONSEQUENCE
            else Kind.NOISE
        )
    if _is_dealt_with(line.text):
        return Kind.NOISE
    if line.level is Severity.PYTHON:
        return Kind.CONSEQUENCE if hit.weight >= _SURE_WARNING else Kind.NOISE
    if line.level is Severity.WARNING and hit.weight < _SURE_WARNING and not _FAILED.search(line.text):
        return Kind.NOISE
    if line.level in (Severity.INFO, Severity.WARNING):
        return Kind.CONSEQUENCE if hit.weight >= _SURE else Kind.NOISE
    return hit.kind if is_raised(line) else _kind_if_told(hit, rule, lines)


def _kind_if_told(hit: _Hit, rule: Rule, lines: LogLines) -> int:
    """Return what a line proves that is no exception and has no level."""
    line = lines.line(hit.line)
    if _ERROR.search(line.text):
        is_told = rule.reason is not Reason.PREEMPTED or _CAME.search(line.text) is not None
        return hit.kind if is_told else min(hit.kind, Kind.WEAK)
    if _PROGRESS.search(line.text):
        return Kind.NOISE
    sure = hit.weight >= _SURE or hit.kind == Kind.WEAK or _is_said_by_an_error(hit.line, lines)
    if sure and rule.retry is Retry.OTHER_NODE:  # no exit code, signal or peer is doubted for its sake
        return Kind.CONSEQUENCE
    return Kind.WEAK if sure else Kind.NOISE


def _is_dealt_with(text: str) -> bool:
    """True if a line says that the program goes on. What was raised may only say what somebody could do."""
    return _GOES_ON.search(text) is not None and not _GIVES_UP.search(text) and not names_exception(text)


def _is_said_by_an_error(index: int, lines: LogLines) -> bool:
    """True if a few lines before an exception is named: this line may be a part of its message."""
    return any(
        _RAISED_SHAPE.search(lines.shapes[near]) and names_exception(lines.line(near).text)
        for near in range(max(0, index - _NEAR), index)
    )


def _kind_in(chain: _Chain, hit: _Hit, lines: LogLines) -> int:
    """Return what a line of a traceback proves: nothing, if the traceback is of a logger or of a destructor."""
    before = lines.shapes[max(0, chain.start - 3) : chain.start]
    return Kind.NOISE if any(_NOT_OF_THE_PROGRAM.search(shape) for shape in before) else hit.kind


def _incident(hit: _Hit, lines: LogLines) -> Incident:
    line = lines.line(hit.line)
    return Incident(
        kind=Kind.CONSEQUENCE if hit.survived else hit.kind,
        rule=hit.rule,
        line=hit.line,
        rank=line.rank,
        time=line.time,
        text=line.text,
        survived=hit.survived,
    )


def _hits(lines: LogLines, book: RuleBook, work: Work) -> list[_Hit]:
    """Return every line that a rule matches and no noise rule does, in the order of the log."""
    return [
        hit
        for index, matched in matching_rules(lines, book.probes, work)
        for hit in _hits_of_line(index, matched, lines, book)
    ]


def _hits_of_line(index: int, matched: list[int], lines: LogLines, book: RuleBook) -> list[_Hit]:
    if _is_code(index, lines):
        return []
    rules = [book.rules[rule] for rule in matched]
    noise = max((rule.weight for rule in rules if rule.kind is Kind.NOISE), default=None)
    hits = []
    for number, rule in zip(matched, rules, strict=True):
        if rule.kind is Kind.NOISE or (noise is not None and rule.weight <= noise):
            continue
        hits.append(_Hit(index, number, int(rule.kind), rule.weight))
    return hits


def _is_code(index: int, lines: LogLines) -> bool:
    """True for a line of source code that a traceback shows."""
    line = lines.line(index)
    if _FRAME.match(line.text) or _SHOWN_CODE.match(line.text):
        return True
    if index == 0 or not line.indent:
        return False
    before = lines.line(index - 1)
    if _FRAME.match(before.text):
        return True
    return bool(_CODE.match(line.text)) and any(
        _FRAME.match(lines.line(near).text) for near in range(max(0, index - 4), index)
    )


def _chains(lines: LogLines) -> list[_Chain]:
    """Return the chains of tracebacks, in the order of the log."""
    chains: list[_Chain] = []
    read: list[int] = []
    linked: dict[int | None, int] = {}  # rank -> where its last chain goes on
    marks = [index for index, shape in enumerate(lines.shapes) if _MARKS.search(shape)]
    if len(marks) > _MOST_MARKS:
        marks = marks[: _MOST_MARKS // 2] + marks[-_MOST_MARKS // 2 :]
    for index in marks:
        shape = lines.shapes[index]
        if _TRACEBACK_SHAPE in shape:
            rank = lines.line(index).rank
            end = _end_of_traceback(index, rank, lines, read)
            last = next((chain for chain in reversed(chains[-8:]) if chain.rank == rank), None)
            if last is not None and (linked.pop(rank, -9) >= index - 3 or index < last.end - _AFTER):
                last.end = max(end, last.end)
            else:
                if last is not None:
                    last.end = min(last.end, index)
                chains.append(_Chain(index, end, rank))
        elif shape.endswith(_CHAIN_SHAPES):
            linked[lines.line(index).rank] = index
    return chains


def _end_of_traceback(start: int, rank: int | None, lines: LogLines, read: list[int]) -> int:
    """Return where the message of a traceback's exception ends, about. `read`: the lines that were read for that."""
    indent = lines.line(start).indent
    last = min(len(lines), start + _LONGEST_TRACEBACK)
    for index in range(start + 1, last):
        if _FRAME_SHAPE.match(lines.shapes[index]) or _FRAME_SHAPE.match(lines.shapes[index - 1]):
            continue
        if len(read) >= _MOST_READ:
            return min(len(lines), start + _AFTER)
        read.append(index)
        line = lines.line(index)
        if line.rank != rank and rank is not None:
            continue
        if line.text and line.indent <= indent and not _INSIDE.match(line.text):
            return min(len(lines), index + 1 + _AFTER)
    return last


def _chain_of(index: int, lines: LogLines, chains: list[_Chain], starts: list[int]) -> _Chain | None:
    rank = lines.line(index).rank
    at = bisect_right(starts, index)
    for chain in reversed(chains[max(0, at - 8) : at]):
        if index < chain.end and chain.rank == rank:
            return chain
    return None


def _is_within(rule: Rule, index: int, chain: _Chain | None, lines: LogLines) -> bool:
    start, end = (index - _NEAR, index + _NEAR) if chain is None else (chain.start, max(chain.end, index + 1))
    near = lines.shapes[max(0, start) : end]
    return any(letters in shape for shape in near for letters in rule.within)


class _Rest:
    """What a log says at its end, so that a failure that the program survived is known."""

    def __init__(self, lines: LogLines) -> None:
        self._progress: list[tuple[int, int | None]] = []  # line and rank, the last one first
        self._ordinary: list[int] = []  # lines, the last one first
        for index in range(len(lines) - 1, max(0, len(lines) - _LAST_LINES) - 1, -1):
            shape = lines.shapes[index]
            if _PROGRESS_SHAPE.search(shape) and len(self._progress) < _MOST_PROGRESS:
                line = lines.line(index)
                if not _FRAME.match(line.text) and _PROGRESS.search(line.text):
                    self._progress.append((index, line.rank))
            is_shown_code = index > 0 and _FRAME_SHAPE.match(lines.shapes[index - 1]) is not None
            if len(self._ordinary) < _ENOUGH_ORDINARY and not is_shown_code and not _UNWELL.search(shape):
                self._ordinary.append(index)

    def goes_on_after(self, line: int, rank: int | None) -> bool:
        """True if much was said behind a line, by the same rank if it is known, that speaks of no failure."""
        progress = self.progress_between(line, 1 << 62, rank)
        far = len(self._ordinary) == _ENOUGH_ORDINARY and self._ordinary[-1] > line
        return progress >= _ENOUGH_PROGRESS or (rank is None and far)

    def progress_between(self, first: int, last: int, rank: int | None) -> int:
        """Return how often the rank reported progress between two lines, as far as the end of the log tells."""
        return sum(first < index < last and of == rank for index, of in self._progress)
