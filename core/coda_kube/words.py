"""Words of a status or spec that this version may not know: a newer one, or its definition, allowed them.

Each has a reading with which the job goes on. A word that nobody can read would keep a job from ever ending.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from coda.errors import InvalidInput
from coda.model import Phase

Word = TypeVar("Word", bound=Enum)


def word_or(unknown: Word, text: object) -> Word:
    """Return the word that `text` is, of the kind of `unknown`; `unknown` itself where there is no such word."""
    try:
        return type(unknown)(text)
    except ValueError:
        return unknown


def phase_from_word(word: str, *, is_deleted: bool) -> Phase:
    """Return the phase of a job; one that is not known reads as RESTARTING if the job is deleted: its pods only go.

    Raises InvalidInput for an unknown phase of a job that is not deleted: whether it runs cannot be guessed."""
    try:
        return Phase(word)
    except ValueError as error:
        if is_deleted:
            return Phase.RESTARTING
        raise InvalidInput(f"the phase {word!r:.60} is not known: a newer version may have written it") from error
