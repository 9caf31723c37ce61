from __future__ import annotations

import pytest

from coda.errors import InvalidInput
from coda_kube.objects.names import LABEL_ATTEMPT, LABEL_RANK
from coda_lab.kubelets.behaviour import PREFIX, USUAL, Behaviour, behaviour_from_metadata


def behaviour(labels: dict[str, str] | None = None, **annotations: str) -> Behaviour:
    keys = {name.replace("__", ".").replace("_", "-"): text for name, text in annotations.items()}
    return behaviour_from_metadata(
        {"labels": labels or {}, "annotations": {PREFIX + name: text for name, text in keys.items()}}
    )


def test_a_pod_without_annotations_runs_until_it_is_deleted() -> None:
    assert behaviour_from_metadata({"annotations": {"other/key": "x"}}) == USUAL
    assert USUAL.run_s is None


def test_every_annotation_is_read() -> None:
    assert behaviour(
        run_seconds="1.5",
        run_from="placement",
        exit_code="3",
        needs_memory="12Gi",
        log="a\nb",
        start_delay_seconds="2",
        stop_seconds="0",
        image_pull="fail",
        refuse="NodeAffinity",
        never_start="true",
    ) == Behaviour(
        run_s=1.5,
        runs_from_placement=True,
        exit_code=3,
        needs_bytes=12 << 30,
        log="a\nb",
        start_delay_s=2.0,
        stop_s=0.0,
        fails_image_pull=True,
        refusal="NodeAffinity",
        never_starts=True,
    )


@pytest.mark.parametrize(
    ("labels", "run_s"),
    [
        pytest.param({LABEL_RANK: "0", LABEL_ATTEMPT: "1"}, 10.0, id="neither: the plain one"),
        pytest.param({LABEL_RANK: "0", LABEL_ATTEMPT: "2"}, 20.0, id="its attempt"),
        pytest.param({LABEL_RANK: "3", LABEL_ATTEMPT: "1"}, 30.0, id="its rank"),
        pytest.param({LABEL_RANK: "3", LABEL_ATTEMPT: "2"}, 30.0, id="rank wins over attempt"),
        pytest.param({}, 10.0, id="a pod of nobody's gang"),
    ],
)
def test_overrides_by_rank_and_attempt(labels: dict[str, str], run_s: float) -> None:
    found = behaviour(labels, run_seconds="10", **{"run_seconds__attempt-2": "20", "run_seconds__rank-3": "30"})
    assert found.run_s == run_s


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run_seconds", "soon"),
        ("run_seconds", "-1"),
        ("run_seconds", "nan"),
        ("run_seconds", "inf"),
        ("run_from", "start"),
        ("exit_code", "256"),
        ("needs_memory", "much"),
        ("exit_code", "-1"),
        ("exit_code", "1.0"),
        ("image_pull", "slow"),
        ("refuse", " "),
        ("never_start", "yes"),
        ("run_second", "1"),
        ("run_seconds__rank-", "x"),
    ],
)
def test_nonsense_is_named(name: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=name.partition("__")[0].replace("_", "-")):
        behaviour({LABEL_RANK: ""}, **{name: text})
