"""The benchmark of the failure classifier: every kind of log is a mebibyte, and the slowest one is judged."""

from __future__ import annotations

import pytest

from classifying import cpu_ms, rows_of
from rig.logs import KINDS, MIB


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_log_is_a_mebibyte_and_the_same_each_time(kind: str) -> None:
    log = KINDS[kind]()
    assert MIB // 2 < len(log) <= MIB
    assert KINDS[kind]() == log


def test_the_slowest_kind_is_named_and_judged() -> None:
    rows = rows_of({"progress": 9.0, "prose": 31.0, "binary": 20.0})
    assert [(row.name, row.value, row.budget) for row in rows] == [
        ("log of training, 1 MiB: CPU", 9.0, "<= 50"),
        ("slowest log, 1 MiB (prose): CPU", 31.0, "<= 50"),
    ]


def test_cpu_time_is_the_least_of_the_runs() -> None:
    assert 0 <= cpu_ms(lambda: b"KeyError: 'x'\n", runs=3) < 1000
