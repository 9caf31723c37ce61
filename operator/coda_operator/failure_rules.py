"""The rules by which failures are judged: the built-in ones, and those of the platform team from a folder."""

from __future__ import annotations

import logging
from pathlib import Path

from coda.diagnosis import built_in_rules
from coda.diagnosis.platform_rules import PlatformRules, platform_rules
from coda.errors import InvalidInput

log = logging.getLogger(__name__)


def read_failure_rules(folder: str) -> PlatformRules:
    """Return all rules; those of the folder's `*.toml`, in the order of their names, go first. "": built-in ones only.

    What cannot be read is refused alone, in one logged sentence that names file, rule and mistake. Raises InvalidInput
    if the folder is not there: the installation is incomplete."""
    if not folder:
        return PlatformRules(book=built_in_rules())
    texts: list[tuple[str, str]] = []
    refused: list[str] = []
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.suffix == ".toml")
    except OSError as error:
        raise InvalidInput(f"CODA_FAILURE_RULES {folder} cannot be read: {error}") from error
    for path in files:
        try:
            texts.append((path.name, path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            refused.append(f"{path.name} cannot be read; none of its rules counts: {error}")
    found = platform_rules(texts, built_in_rules())
    found = PlatformRules(book=found.book, accepted=found.accepted, refused=(*refused, *found.refused))
    for sentence in found.refused:
        log.error("a rule for failures is refused: %s", sentence)
    return found
