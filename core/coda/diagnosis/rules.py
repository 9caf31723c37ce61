"""Rules as data: from TOML to what the classifier searches for, with every mistake named."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from importlib import resources
from typing import Final, TypeVar

from coda.diagnosis.patterns import (
    LEAST_LETTERS,
    Entry,
    Pattern,
    Probe,
    ProbeIndex,
    Where,
    letters_of,
    pattern_from_text,
)
from coda.diagnosis.reasons import FACTS, Reason, Retry
from coda.errors import InvalidInput

_T = TypeVar("_T")
MOST_RULES: Final = 2000
_FIELDS: Final = frozenset(
    ("id", "reason", "kind", "weight", "sub", "retry", "advice", "match", "exceptions", "codes", "within", "examples")
)
FILES: Final = (
    "memory",
    "inputs",
    "program",
    "imports",
    "crashes",
    "gpus",
    "communication",
    "checkpoints",
    "platform",
    "launchers",
    "families",
)


_CODE_WORDS: Final = (
    "exit ?code(?: is)?",
    "exit ?status(?: is)?",
    "exit value",
    "return ?code",
    "exited with",
    "exited with code",
    "exited with status",
    "exit_code",
    "returned non-zero exit status",
    "error code",
    "from container .* is",
    "died with <Signals.*",
)


class Kind(IntEnum):
    """How much a line proves. A higher kind wins over a lower one; within a kind the earliest wins."""

    NOISE = 0  # decides nothing, and no rule of at most its weight decides by the same line
    CONSEQUENCE = 1  # something failed: a traceback, a launcher's summary
    ABORT = 2  # a process gave up; what it said before is the cause
    PEER = 3  # another rank went away, or did not answer
    SIGNAL = 4  # a process was killed or crashed, and the line does not say why
    WEAK = 5  # names a cause, but programs also print it and go on
    CAUSE = 6  # names the root cause


EXPLICIT: Final = (Kind.CAUSE, Kind.WEAK, Kind.PEER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. `within`: letters of which one must be near the line, in its traceback if it has one.

    `is_added`: not one of Coda's own; it is believed in any line, whether that says that something failed or not."""

    name: str
    reason: Reason
    kind: Kind
    weight: int  # among rules that match one line or one traceback, the heaviest decides
    sub_reason: str
    retry: Retry
    advice: str
    within: tuple[str, ...]
    examples: tuple[str, ...]
    is_added: bool = False


@dataclass(frozen=True, slots=True)
class RuleBook:
    """Rules in the order of their files, and their patterns by the words that are looked up."""

    rules: tuple[Rule, ...]
    probes: ProbeIndex

    def with_rules(self, added: RuleBook) -> RuleBook:
        """Return a book with further rules; on one line they win over equal ones that were there before."""
        return _book(
            [*added._pairs(), *self._pairs()],
        )

    def _pairs(self) -> list[tuple[Rule, list[Pattern]]]:
        patterns: list[list[Pattern]] = [[] for _ in self.rules]
        for index, pattern in self.probes.entries:
            patterns[index].append(pattern)
        return list(zip(self.rules, patterns, strict=True))


@lru_cache(maxsize=1)
def built_in_rules() -> RuleBook:
    """Return the rules that come with Coda."""
    folder = resources.files("coda.diagnosis").joinpath("rules")
    texts = [(name, folder.joinpath(f"{name}.toml").read_text(encoding="utf-8")) for name in FILES]
    return _book([pair for name, text in texts for pair in _pairs_from_toml(text, f"{name}.toml")])


def rules_from_toml(text: str, where: str) -> RuleBook:
    """Read rules. Raises InvalidInput with one sentence that names file, rule and mistake."""
    pairs = _pairs_from_toml(text, where)
    for rule, patterns in pairs:
        for pattern in patterns:
            try:
                pattern.check()
            except InvalidInput as error:
                raise InvalidInput(f"{where}: rule {rule.name}: {error}") from error
    return _book((replace(rule, is_added=True), patterns) for rule, patterns in pairs)


def _book(pairs: Iterable[tuple[Rule, list[Pattern]]]) -> RuleBook:
    kept = list(pairs)
    names: set[str] = set()
    entries: list[Entry] = []
    for index, (rule, patterns) in enumerate(kept):
        if rule.name in names:
            raise InvalidInput(f"two rules have the id {rule.name!r}: give each its own")
        names.add(rule.name)
        entries += [(index, pattern) for pattern in patterns]
    return RuleBook(tuple(rule for rule, _ in kept), ProbeIndex(entries))


def _pairs_from_toml(text: str, where: str) -> list[tuple[Rule, list[Pattern]]]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{where} is no TOML: {error}") from error
    rules = tables.get("rule", [])
    if set(tables) - {"rule"} or not isinstance(rules, list) or len(rules) > MOST_RULES:
        raise InvalidInput(f"{where} may only have [[rule]] tables, at most {MOST_RULES}")
    pairs = []
    for number, table in enumerate(rules, 1):
        if not isinstance(table, dict):
            raise InvalidInput(f"{where}: rule {number} is no table")
        try:
            pairs.append(_rule(table))
        except InvalidInput as error:
            raise InvalidInput(f"{where}: rule {table.get('id', number)}: {error}") from error
    return pairs


def _rule(table: Mapping[str, object]) -> tuple[Rule, list[Pattern]]:
    if unknown := sorted(set(table) - _FIELDS):
        raise InvalidInput(f"unknown field {unknown[0]!r}; the fields are {', '.join(sorted(_FIELDS))}")
    weight = table.get("weight", 0)
    if not isinstance(weight, int) or isinstance(weight, bool) or not -100 <= weight <= 100:
        raise InvalidInput("weight must be a whole number from -100 to 100")
    reason = _choice(_text(table, "reason", "No signature"), {one.value: one for one in Reason}, "reason")
    kind = _choice(_text(table, "kind", "cause"), {one.name.lower(): one for one in Kind}, "kind")
    retry_text = _text(table, "retry", FACTS[reason].retry.value)
    exceptions = _texts(table, "exceptions")
    patterns = [pattern_from_text(text) for text in _texts(table, "match")]
    patterns += [_exception_pattern(name) for name in exceptions]
    patterns += _code_patterns(_codes(table))
    if not patterns:
        raise InvalidInput("needs match, exceptions or codes")
    rule = Rule(
        name=_text(table, "id", ""),
        reason=reason,
        kind=kind,
        weight=weight,
        sub_reason=_text(table, "sub", ""),
        retry=_choice(retry_text, {one.value: one for one in Retry}, "retry"),
        advice=_text(table, "advice", FACTS[reason].advice),
        within=tuple(letters_of(text) for text in _texts(table, "within")),
        examples=tuple(_texts(table, "examples")),
    )
    if not rule.name:
        raise InvalidInput("needs an id")
    return rule, patterns


def _exception_pattern(name: str) -> Pattern:
    """Return the pattern of a line that begins with this exception, with or without its module; `*X`: ends with X."""
    ending = name.removeprefix("*")
    if not ending.replace("_", "").isalnum() or len(letters_of(ending)) < LEAST_LETTERS:
        raise InvalidInput(f"{name[:60]!r} is no name of an exception")
    before = "[A-Za-z_]{0,60}" if name.startswith("*") else ""
    after = r"(?::|$|\s{1,60}Traceback)" if before else r"(?::|$|\s?\(|\s{1,60}Traceback)"
    found = rf"(?:^|[\s.\]>:|]){before}{ending}{after}"
    words = re.findall("[a-z]{1,80}", ending.lower())
    probe = Probe(words[-1], Where.END) if before else Probe(max(words, key=len), Where.WHOLE)
    return Pattern(name, letters_of(ending), probe, (found,), flags=0)


def _codes(table: Mapping[str, object]) -> list[int]:
    codes = table.get("codes", [])
    if not isinstance(codes, list) or not all(isinstance(code, int) and abs(code) < 1 << 32 for code in codes):
        raise InvalidInput("codes must be a list of exit codes")
    return codes


def _code_patterns(codes: list[int]) -> list[Pattern]:
    """Return the ways in which launchers and platforms write that a process ended with one of these codes."""
    if not codes:
        return []
    one = f"(?:{'|'.join(str(code) for code in codes)})\\b"
    return [pattern_from_text(rf"{word}[ :='\"]{{0,3}}{one}") for word in _CODE_WORDS]


def _text(table: Mapping[str, object], name: str, default: str) -> str:
    value = table.get(name, default)
    if not isinstance(value, str) or len(value) > 400:
        raise InvalidInput(f"{name} must be a text of at most 400 characters")
    return value


def _texts(table: Mapping[str, object], name: str) -> list[str]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidInput(f"{name} must be a list of texts")
    return value


def _choice(text: str, choices: Mapping[str, _T], name: str) -> _T:
    if text not in choices:
        raise InvalidInput(f"{name} {text[:60]!r} is not one of: {', '.join(choices)}")
    return choices[text]
