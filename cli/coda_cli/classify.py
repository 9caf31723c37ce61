"""`coda classify`: why did this log's program fail? The same code as the operator's, on anybody's log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer
from rich.console import Console

from coda.diagnosis import Diagnosis, End, RankLog, RuleBook, built_in_rules, classify, rules_from_toml
from coda.errors import InvalidInput
from coda_cli.exit_codes import one_sentence
from coda_cli.output import TextOption, TextOutput, print_for_programs, printable

MOST_BYTES: Final = 1 << 20
_CHUNK: Final = 1 << 18


def classify_command(
    file: Annotated[str, typer.Argument(help="A log; - reads standard input. Its last mebibyte is looked at.")] = "-",
    exit_code: Annotated[
        int | None, typer.Option("--exit-code", min=-255, max=4294967295, help="How the program ended, if known.")
    ] = None,
    output: TextOption = TextOutput.TEXT,
    rules: Annotated[Path | None, typer.Option("--rules", help="Further rules, a TOML file; they go first.")] = None,
) -> None:
    """Say why a program failed: reason, evidence and whether to try again.

    Exit code 0: there is an answer, `No signature` included; 1: it could not be read; 2: wrong usage."""
    with one_sentence(Console(stderr=True)):
        book = _book(rules)
        found = classify([RankLog(log=_read(file))], [End(exit_code=exit_code)], book)
        if not print_for_programs(_fields(found), output):
            sys.stdout.write(_text(found))


def _read(file: str) -> bytes:
    """Return the last mebibyte, whatever the size of the log."""
    try:
        if file == "-":
            return _last(sys.stdin.buffer)
        with Path(file).open("rb") as log:
            if log.seekable():
                log.seek(max(0, log.seek(0, 2) - MOST_BYTES))
            return _last(log)
    except OSError as error:
        raise InvalidInput(f"the log {file} cannot be read: {error.strerror}") from error


def _last(log: BinaryIO) -> bytes:
    kept = b""
    while chunk := log.read(_CHUNK):
        kept = (kept + chunk)[-MOST_BYTES:]
    return kept


def _book(rules: Path | None) -> RuleBook:
    if rules is None:
        return built_in_rules()
    try:
        text = rules.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--rules {rules} cannot be read: {error}") from error
    return built_in_rules().with_rules(rules_from_toml(text, str(rules)))


def _fields(found: Diagnosis) -> dict[str, object]:
    return {
        "reason": found.reason.value,
        "subReason": found.sub_reason,
        "category": found.category,
        "explicit": found.explicit,
        "evidence": found.evidence,
        "line": found.line,
        "rank": found.rank,
        "retry": found.retry.value,
        "advice": found.advice,
        "rule": found.rule,
    }


def _text(found: Diagnosis) -> str:
    sub = f" ({found.sub_reason})" if found.sub_reason else ""
    where = [f"rank {found.rank}"] if found.rank is not None else []
    where += [f"line {found.line}"] if found.line is not None else []
    place = f" ({', '.join(where)})" if where else ""
    lines = [
        f"reason:   {found.reason.value}{sub}",
        f"category: {found.category}",
        f"evidence: {found.evidence or 'none'}{place}",
        f"retry:    {found.retry.value}",
        f"advice:   {found.advice}",
    ]
    return "\n".join(map(printable, lines)) + "\n"
