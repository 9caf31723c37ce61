"""Looking up words before patterns loses nothing, and the work for one log is bounded whatever the log is."""

from __future__ import annotations

import pytest

from coda.diagnosis import RankLog, Reason, built_in_rules, classify
from coda.diagnosis.incidents import incidents_of
from coda.diagnosis.log_lines import LogLines
from coda.diagnosis.search import MOST_CHECKS, MOST_LETTERS, MOST_TRIALS, MOST_TRIED_CHARS, Work, matching_rules
from rig.logs import KINDS, MIB

pytestmark = pytest.mark.heavy

BOOK = built_in_rules()
EXAMPLES = "\n".join(example for rule in BOOK.rules for example in rule.examples)


def test_every_line_that_a_pattern_matches_is_found() -> None:
    """Compared with trying every pattern on every line, for the examples of all rules, a few lines at a time."""
    texts = EXAMPLES.split("\n")
    for first in range(0, len(texts), 20):
        lines = LogLines("\n".join(texts[first : first + 20]).encode())
        tried = [
            (index, sorted({rule for rule, pattern in BOOK.probes.entries if pattern.is_in(lines.line(index).text)}))
            for index in range(len(lines))
        ]
        assert matching_rules(lines, BOOK.probes, Work()) == [entry for entry in tried if entry[1]]


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_work_for_a_log_is_bounded_and_a_cause_at_its_end_is_found(kind: str) -> None:
    log, work = KINDS[kind](), Work()
    log += b"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB on GPU 3 for the activations\n"
    found = incidents_of(LogLines(log), BOOK, work)
    assert work.trials <= MOST_TRIALS + 2000  # of the last line that is begun
    assert work.chars <= MOST_TRIED_CHARS + (1 << 21)
    assert work.checks <= MOST_CHECKS + 10_000
    assert work.letters <= 2 * MOST_LETTERS
    assert any(BOOK.rules[incident.rule].reason is Reason.GPU_MEMORY for incident in found)


def test_of_many_different_lines_the_last_count_and_those_before_that_speak_of_a_failure() -> None:
    log = KINDS["words that nobody has met"]()
    cause = b"ModuleNotFoundError: No module named 'apex'\n"
    found = classify([RankLog(log=cause + log[: MIB - 100])])
    assert found.reason in (Reason.IMPORT, Reason.NO_SIGNATURE)
    assert classify([RankLog(log=log[: MIB - 100] + b"\n" + cause)]).reason is Reason.IMPORT
