"""The rules by which failures are judged: the built-in ones, and those of the platform team from a folder."""

from __future__ import annotations

from pathlib import Path

from coda.diagnosis import RuleBook, built_in_rules, rules_from_toml
from coda.errors import InvalidInput


def read_failure_rules(folder: str) -> RuleBook:
    """Return all rules; those of the folder's `*.toml`, in the order of their names, go first. "": built-in ones only.

    Raises InvalidInput with one sentence that names file, rule and mistake: half of the rules would mislead."""
    book = built_in_rules()
    if not folder:
        return book
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.suffix == ".toml")
        texts = [(path, path.read_text(encoding="utf-8")) for path in files]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"CODA_FAILURE_RULES {folder} cannot be read: {error}") from error
    for path, text in reversed(texts):
        try:
            book = book.with_rules(rules_from_toml(text, path.name))
        except InvalidInput as error:
            raise InvalidInput(f"CODA_FAILURE_RULES {folder}: {error}") from error
    return book
