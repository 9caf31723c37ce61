"""One log as lines: with escapes, progress bars and prefixes taken off, and the rank and time that a prefix names.

Only what is looked at is cleaned: a log of a mebibyte is split, and its lines are compared by their letters alone, so
that thousands of lines that differ in numbers are one shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

MOST_BYTES: Final = 1 << 20
LONGEST_LINE: Final = 4096
_MOST_IN_A_PATH: Final = 2
_OVERLAP: Final = 256
_STAMP_CHARS: Final = 40  # a kubelet's time stamp before a line
_MOST_PIECES: Final = 8  # of a longer line its two ends are looked at
_MOST_LINES: Final = 60_000

_LOWER: Final = bytes(byte + 32 if 65 <= byte <= 90 else byte for byte in range(256))
_NO_LETTERS: Final = bytes(byte for byte in range(256) if not (65 <= byte <= 90 or 97 <= byte <= 122) and byte != 10)
_WORDS: Final = bytes(
    byte if 97 <= byte <= 122 or byte == 10 else byte + 32 if 65 <= byte <= 90 else 32 for byte in range(256)
)
_ESCAPES: Final = re.compile(rb"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)?|[@-Z\\-_])")
_ERROR_KEYS: Final = ("exc_info", "exception", "stack", "traceback", "error")
_MESSAGE_KEYS: Final = ("log", "message", "msg", "text", "textPayload", "event")

_TIME: Final = r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?[\],]?[:\s]?\s?"
_PREFIXES: Final = (  # the signs that each may begin with, and what it looks like
    ("[0-9", r"(?P<time>" + _TIME + r")"),
    ("[", r"\[(?:rank|default|trainer|Rank |RANK )?(?P<rank>\d{1,6})\]:?\s?"),
    ("[", r"\[\d{1,6},(?P<rank>\d{1,6})\]<std\w{2,5}>:?\s?"),
    ("[", r"\[[\w.-]{1,64}:\d{1,8}(?::\d{1,8})?(?:,\d{1,4})?\](?: \[(?P<rank>\d{1,4})\])?:?\s?"),
    ("0-9", r"(?P<rank>\d{1,6}):\s"),
    ("rR", r"(?:[Rr]ank|RANK)[ _]?(?P<rank>\d{1,6})\s?[:|\]]\s?"),
    ("(", r"\([\w.:<>/-]{1,80}(?: [\w.-]{1,40}){0,2} pid=\d{1,9}(?:, ip=[\d.]{7,15})?\)\s?"),
    ("[", r"\[pod/[\w.-]{0,80}?(?:-(?P<rank>\d{1,6}))?/[\w.-]{1,64}\]\s?"),
    ("a-z0-9", r"[a-z0-9][a-z0-9.-]{0,80}?-(?P<rank>\d{1,6})(?: [a-z][a-z0-9-]{0,40})? \|?\s?"),
    ("A-Za-z0-9_.-", r"[\w.-]{1,64}\s{1,20}\|\s"),
    ("gnwh", r"(?:gpu|node|worker|host)[\w.-]{1,40}: "),
    ("[0-9", r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,6})?\]?\s{1,2}"),
    ("IWEF", r"[IWEF]\d{4,8} \d\d:\d\d:\d\d(?:\.\d{1,9})?\s{1,9}\d{1,9}(?: [\w./<>-]{1,120}:\d{1,6})?\]\s?"),
    ("[", r"\[(?:std(?:out|err)|TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|E|W|I)\]:?\s?"),
    ("IECFs", r"(?:INFO|ERROR|CRITICAL|FATAL|stderr|stdout)\s{0,4}[:|-]\s{1,2}"),
    ("s", r"std(?:out|err) F "),
    ("EWICD", r"(?:ERROR|WARNING|INFO|CRITICAL|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]{1,80}:\d{1,6}\]\s?"),
    ("-", r"- ?[\w.]{1,80} - (?:ERROR|INFO|WARNING|CRITICAL|DEBUG) - "),
    ("s", r"srun: error: (?=[\w.-]{1,60}: )"),
)
_PREFIXES_BY_SIGN: Final = {
    sign: tuple(
        re.compile(pattern) for signs, pattern in _PREFIXES if re.match("[" + signs.replace("[", "\\[") + "]", sign)
    )
    for sign in map(chr, range(33, 127))
}
_PLAIN_START: Final = re.compile(r"[A-Z][A-Za-z_.]{3,80}(?::|$| )|\s|Traceback")


_LEVEL_CHARS: Final = 320  # a level stands before the message; a warning of Python behind a path
_LEVEL: Final = re.compile(
    r"(?P<error>\b(?:ERROR|CRITICAL|FATAL|SEVERE)\b|\[E[ \]\d]|^[EF]\d{4} |: [EF] [a-z])"
    r"|(?P<python>\b[A-Z]\w{0,40}Warning: |\bwarnings\.warn\()"
    r"|(?P<warning>\b(?<!NCCL )WARN(?:ING)?\b|\[W[ \]\d]|^W\d{4} |: W [a-z]|\bWarning:)"
    r"|(?P<info>\b(?<!_DEBUG=)(?:INFO|DEBUG|TRACE|NOTICE)\b|\[I[ \]\d]|^I\d{4} |: I [a-z]|\[info\]|level=info)"
)


class Severity(Enum):
    """What a program says of its own line. PYTHON: a warning of Python's `warnings`."""

    NONE = auto()
    INFO = auto()
    WARNING = auto()
    PYTHON = auto()
    ERROR = auto()


_LEVELS: Final = {level.name.lower(): level for level in Severity}


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its prefixes. `indent`: blanks before its text. `time`: as printed, "" if it has none."""

    text: str
    rank: int | None
    time: str
    indent: int
    level: Severity


class LogLines:
    """The last mebibyte of one log. `shapes`: the letters of each line, lower-case."""

    def __init__(self, log: bytes) -> None:
        self._lines = _split(_plain(log[-MOST_BYTES:]))
        self.shapes = b"\n".join(self._lines).translate(_LOWER, _NO_LETTERS).decode("ascii").split("\n")
        self._cleaned: dict[int, Line] = {}

    def words_of(self, groups: Iterable[list[int]]) -> list[list[str]]:
        """Return the words of the first line of each group: lower-case letters alone."""
        some = b"\n".join([self._lines[group[0]] for group in groups]).translate(_WORDS).decode("ascii")
        return [line.split() for line in some.split("\n")]

    def __len__(self) -> int:
        return len(self._lines)

    def raw(self, index: int) -> str:
        """Return a line as it was printed."""
        return self._lines[index].decode("utf-8", "replace")

    def line(self, index: int) -> Line:
        """Return a line without its prefixes."""
        found = self._cleaned.get(index)
        if found is None:
            found = self._cleaned[index] = _cleaned(self.raw(index))
        return found


def _plain(log: bytes) -> bytes:
    if b"\0" in log:  # UTF-16, or holes of a sparse file
        log = log.replace(b"\0", b"")
    if b"\x1b" in log:
        log = _ESCAPES.sub(b"", log)
    if b"\r" in log:
        log = log.replace(b"\r", b"\n")
    if b'{"' in log[:_STAMP_CHARS] or b'\n{"' in log or b'Z {"' in log:
        log = _without_json(log)
    if b"\\n" in log:  # a message that was quoted; a path of Windows has one such sign, or two
        log = b"\n".join(
            line.replace(b"\\n", b"\n") if line.count(b"\\n") > _MOST_IN_A_PATH else line for line in log.split(b"\n")
        )
    return log


def _without_json(log: bytes) -> bytes:
    """Return the messages of lines that are JSON objects; other lines as they are."""
    lines = []
    for line in log.split(b"\n"):
        start = line.find(b"{", 0, _STAMP_CHARS)
        is_object = start >= 0 and line.rstrip().endswith(b"}") and (start == 0 or line[:1].isdigit())
        lines.append(line[:start] + _message_of(line[start:]) if is_object else line)
    return b"\n".join(lines)


def _message_of(line: bytes) -> bytes:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(entry, dict):
        return line
    said = [entry.get(key) for key in (*_MESSAGE_KEYS, *_ERROR_KEYS)]
    texts = [text.rstrip("\n") for text in said if isinstance(text, str) and text]
    rank = entry.get("rank")
    before = f"[rank{rank}]: " if isinstance(rank, int) and 0 <= rank < 1_000_000 else ""
    parts = [before + part for text in texts for part in text.split("\n")]
    return "\n".join(parts).encode(errors="replace") if parts else line  # JSON may hold half of a character


def _split(log: bytes) -> list[bytes]:
    lines = log.split(b"\n")[-_MOST_LINES:]
    if all(len(line) <= LONGEST_LINE for line in lines):
        return lines
    parts: list[bytes] = []
    step = LONGEST_LINE - _OVERLAP
    for line in lines:
        pieces = [line[at : at + LONGEST_LINE] for at in range(0, max(1, len(line)), step)]
        parts += pieces if len(pieces) <= _MOST_PIECES else pieces[: _MOST_PIECES // 2] + pieces[-_MOST_PIECES // 2 :]
    return parts


def _cleaned(text: str) -> Line:
    rank, time = None, ""
    level = _level_of(text)
    for _ in range(5):
        if _PLAIN_START.match(text):
            break
        prefixes = _PREFIXES_BY_SIGN.get(text[:1], ())
        found = next((match for prefix in prefixes if (match := prefix.match(text))), None)
        if found is None:
            break
        groups = found.groupdict()
        rank = int(groups["rank"]) if rank is None and groups.get("rank") else rank
        time = time or (groups.get("time") or "").strip("[], :")
        text = text[found.end() :]
    stripped = text.lstrip(" \t|")
    return Line(stripped.rstrip(), rank, time, len(text) - len(stripped), level)


def _level_of(text: str) -> Severity:
    found = _LEVEL.search(text, 0, _LEVEL_CHARS)
    return Severity.NONE if found is None else _LEVELS[found.lastgroup or "none"]
