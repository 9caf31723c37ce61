"""What agents tell each other of ranks: written and read, and read from those who write anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from coda.allocator.curve import WindowReading
from coda.allocator.ranks import MOST_CORES, RankReport
from coda.allocator.window_samples import CpuWork, WindowResult
from coda_agent.cluster.rank_reports import MOST_RANKS, ranks_json, reports_from_json
from coda_kube.objects.json_types import Json

SHARES = st.integers(0, 1000).map(lambda part: part / 1000)
AMOUNTS = st.integers(0, 10**6).map(lambda part: part / 1000)
READINGS = st.builds(WindowReading, share=SHARES, variance=SHARES, steady=st.booleans())
WORKS = st.builds(CpuWork, cores=AMOUNTS, variance=AMOUNTS, steady=st.booleans(), throttled_share=SHARES)
SPEAKING = st.builds(WindowResult, reading=READINGS, held_up=st.none() | st.booleans(), work=st.none() | WORKS)
SILENT = st.builds(
    WindowResult, reading=st.none(), paused=st.booleans(), disturbed=st.booleans(), other_cores=st.booleans()
)
REPORTS = st.builds(
    RankReport,
    job_uid=st.text("abc0-", min_size=1, max_size=40),
    attempt=st.integers(1, 1000),
    rank=st.integers(0, 5000),
    cores=st.integers(1, 1024),
    window=st.integers(0, 1 << 40),
    result=SPEAKING | SILENT,
)


def profile(ranks: Any) -> Json:
    return {"status": {"ranks": ranks}}


@given(REPORTS)
def test_a_report_is_read_as_it_was_written(report: RankReport) -> None:
    assert reports_from_json(profile(ranks_json([report]))) == (report,)


@given(st.lists(REPORTS, max_size=3))
def test_the_order_in_which_ranks_were_measured_changes_no_profile(reports: list[RankReport]) -> None:
    unique = {(one.job_uid, one.attempt, one.rank): one for one in reports}.values()
    assert ranks_json(unique) == ranks_json(reversed(list(unique)))


GOOD: Json = ranks_json(
    [
        RankReport(
            job_uid="u",
            attempt=1,
            rank=1,
            cores=8,
            window=3,
            result=WindowResult(
                reading=WindowReading(share=0.5, variance=0.01),
                held_up=True,
                work=CpuWork(cores=3.5, variance=0.1, steady=True, throttled_share=0.2),
            ),
        )
    ]
)[0]


BAD: tuple[Any, ...] = (-1, [], float("nan"), float("inf"))
NO_TEXT: tuple[Any, ...] = ("x", {})


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "rank",
        7,
        {},
        *(GOOD | {name: value} for name in GOOD for value in BAD),
        *(GOOD | {name: value} for name in sorted(GOOD.keys() - {"jobUID"}) for value in NO_TEXT),
        *({kept: value for kept, value in GOOD.items() if kept != name} for name in ("jobUID", "rank", "gpuVariance")),
        GOOD | {"jobUID": "u" * 129},
        GOOD | {"jobUID": ""},
        GOOD | {"coresPerReplica": 1025},
        GOOD | {"gpuUtilization": 1.1},
        *(GOOD | {name: 1.7e308} for name in ("gpuVariance", "cpuCores", "cpuVariance")),
        {name: GOOD[name] for name in GOOD if not name.startswith("cpu")} | {"gpuVariance": 1.7e308},
        GOOD | {"throttledShare": 1.1},
        GOOD | {"attempt": True},
    ],
)
def test_a_report_that_makes_no_sense_is_left_out_alone(bad: Any) -> None:
    assert len(reports_from_json(profile([bad, GOOD]))) == 1


@pytest.mark.parametrize("nothing", [None, {}, {"status": None}, {"status": {"ranks": None}}, profile([])])
def test_a_profile_without_reports_has_none(nothing: Json | None) -> None:
    assert reports_from_json(nothing) == ()


def test_more_ranks_than_a_node_can_have_are_neither_written_nor_read() -> None:
    many = [GOOD | {"rank": rank} for rank in range(3 * MOST_RANKS)]
    assert len(reports_from_json(profile(many))) == MOST_RANKS
    assert len(ranks_json(reports_from_json(profile(many)) * 2)) == MOST_RANKS


def test_the_definition_knows_every_field_and_the_bound() -> None:
    text = (Path(__file__).parents[3] / "crds" / "nodeprofiles.yaml").read_text()
    schema = yaml.safe_load(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    ranks = schema["properties"]["status"]["properties"]["ranks"]
    assert ranks["maxItems"] == MOST_RANKS
    properties = ranks["items"]["properties"]
    assert set(GOOD) | {"paused", "disturbed", "otherCores"} == set(properties)
    most = {"gpuVariance": 1, "cpuCores": MOST_CORES, "cpuVariance": MOST_CORES**2, "coresPerReplica": MOST_CORES}
    assert {name: properties[name]["maximum"] for name in most} == most
