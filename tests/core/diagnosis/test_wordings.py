"""Short logs in the words of many programs, written for this and labelled before a rule had seen them.

Some stay wrong: a rule for one sentence would not help with the next. What may not grow is how many."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coda.diagnosis import RankLog, Reason, classify

PARTS = re.split(r"(?m)^=== ", (Path(__file__).parent / "wordings.txt").read_text())[1:]
LOGS = [(set(label.split("|")), log) for label, _, log in (part.partition("\n") for part in PARTS)]
LEAST_RIGHT = 0.97
MOST_MISLEADING = 5
"""Wrong causes that are said to be sure: they mislead, and are worse than none."""


def test_every_label_is_a_reason_and_most_reasons_occur() -> None:
    labels = set().union(*(reasons for reasons, _ in LOGS))
    assert labels <= {reason.value for reason in Reason}
    assert len(labels) == len(Reason)
    assert len(LOGS) > 250


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_most_are_given_their_reason_and_few_mislead(prefix: str) -> None:
    wrong = []
    for reasons, log in LOGS:
        text = "\n".join(prefix + line for line in log.split("\n"))
        found = classify([RankLog(log=text.encode())])
        if found.reason.value not in reasons:
            wrong.append((found, log))
    assert len(wrong) <= (1 - LEAST_RIGHT) * len(LOGS), [(found.rule, log[-80:]) for found, log in wrong]
    misleading = [(found.rule, found.evidence) for found, _ in wrong if found.explicit]
    assert len(misleading) <= MOST_MISLEADING, misleading
