"""Rules of a platform team: read one by one, tried on their own examples, and a bad one refused alone.

Nobody should find out by a typo in one rule that all others are gone, or that nobody judges failures any more.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coda.diagnosis.classifier import RankLog, classify
from coda.diagnosis.rules import MOST_RULES, Kind, RuleBook, rules_from_toml
from coda.errors import InvalidInput

MOST_CHARS: Final = 16_384
"""Of one rule. Our choice: the longest of Coda's own has a quarter of that."""
_SHOWN: Final = 80  # characters of an example in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformRules:
    """All rules, those of the platform first. `refused`: one sentence for each rule or file that does not count."""

    book: RuleBook
    accepted: int = 0
    refused: tuple[str, ...] = ()


def platform_rules(files: Iterable[tuple[str, str]], own: RuleBook) -> PlatformRules:
    """Return `own` with the rules of these files (name, TOML) before them. It never fails.

    Ties: the first file goes first, in it the first rule. Of two rules with one id the later one is refused, and so is
    a rule that does not find its own examples. O(characters)."""
    names = {rule.name for rule in own.rules}
    texts: list[str] = []
    refused: list[str] = []
    for where, text in files:
        try:
            tables = _tables(text, where)
        except InvalidInput as error:
            refused.append(f"{error}; none of its rules counts")
            continue
        for number, table in enumerate(tables, 1):
            try:
                name, alone = _tried(table, where, number)
                if name in names:
                    raise InvalidInput(f"{where}: rule {name}: another rule has this id: give each its own")
                if len(texts) >= MOST_RULES:
                    raise InvalidInput(f"{where}: rule {name}: there are {MOST_RULES} rules already")
            except InvalidInput as error:
                refused.append(str(error))
            else:
                names.add(name)
                texts.append(alone)
    book = own.with_rules(rules_from_toml("\n".join(texts), "rules")) if texts else own
    return PlatformRules(book=book, accepted=len(texts), refused=tuple(refused))


def _tables(text: str, where: str) -> list[object]:
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a plain ValueError
        raise InvalidInput(f"{where} is no TOML: {error}") from error
    rules = tables.get("rule", [])
    if set(tables) - {"rule"} or not isinstance(rules, list):
        raise InvalidInput(f"{where} may only have [[rule]] tables")
    return rules


def _tried(table: object, where: str, number: int) -> tuple[str, str]:
    """Return id and text of a rule that works alone. Raises InvalidInput with one sentence."""
    if not isinstance(table, Mapping):
        raise InvalidInput(f"{where}: rule {number} is no table")
    name = table.get("id") if isinstance(table.get("id"), str) else number
    try:
        text = "[[rule]]\n" + "\n".join(f"{_text(key)} = {_text(value)}" for key, value in table.items()) + "\n"
    except InvalidInput as error:
        raise InvalidInput(f"{where}: rule {name}: {error}") from error
    if len(text) > MOST_CHARS:
        raise InvalidInput(f"{where}: rule {name}: it has more than {MOST_CHARS} characters: make two of it")
    alone = rules_from_toml(text, where)
    (rule,) = alone.rules
    for example in rule.examples if rule.kind is not Kind.NOISE else ():
        if classify([RankLog(log=example.encode())], rules=alone).rule != rule.name:
            raise InvalidInput(f"{where}: rule {rule.name}: it does not find its example {example[:_SHOWN]!r}")
    return rule.name, text


def _text(value: object) -> str:
    """Return a text, a number or a list of these as TOML has it: a string there is one of JSON."""
    if isinstance(value, list):
        return f"[{', '.join(_text(one) for one in value if not isinstance(one, list))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InvalidInput("a field is a text, a whole number or a list of these")
