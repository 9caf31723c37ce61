from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda_lab.kubelets.admission import Ledger, Shortage, request_of


def container(cpu: str = "0", gpus: str = "0", **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "nvidia.com/gpu": gpus}}} | more


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"containers": [container("500m", "1"), container("1", "2")]}, (1500, 3), id="containers add up"),
        pytest.param({"containers": [container("1")], "initContainers": [container("4")]}, (4000, 0), id="init peak"),
        pytest.param({"containers": [container("3")], "initContainers": [container("2")]}, (3000, 0), id="init below"),
        pytest.param(
            {"containers": [container("1")], "initContainers": [container("2", restartPolicy="Always")]},
            (3000, 0),
            id="a sidecar adds to the containers",
        ),
        pytest.param(
            {
                "containers": [container("1")],
                "initContainers": [container("2", restartPolicy="Always"), container("5"), container("1")],
            },
            (7000, 0),
            id="an init container runs beside the sidecars before it",
        ),
        pytest.param(
            {
                "containers": [container("1")],
                "initContainers": [container("5"), container("2", restartPolicy="Always")],
            },
            (5000, 0),
            id="but not beside those after it",
        ),
        pytest.param(
            {"containers": [container("1", "2")], "overhead": {"cpu": "250m"}}, (1250, 2), id="overhead on top"
        ),
        pytest.param(
            {
                "containers": [container("1", "2")],
                "resources": {"requests": {"cpu": "6"}},
                "overhead": {"cpu": "250m"},
            },
            (6250, 2),
            id="pod-level cpu counts instead, GPUs stay the containers'",
        ),
    ],
)
def test_request_of(spec: dict[str, Any], expected: tuple[int, int]) -> None:
    request = request_of(spec)
    assert (request["cpu"], request["nvidia.com/gpu"]) == expected


def test_the_refusal_reads_as_a_kubelets() -> None:
    ledger = Ledger({"cpu": 48000, "pods": 110})
    ledger.admit("a", {"cpu": 44000})

    shortage = ledger.shortage({"cpu": 5000})

    assert shortage is not None
    assert shortage.reason == "OutOfcpu"
    assert shortage.message == "Node didn't have enough resource: cpu, requested: 5000, used: 44000, capacity: 48000"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        pytest.param({"cpu": 4001, "memory": 101}, "OutOfcpu", id="cpu is told before memory"),
        pytest.param({"memory": 101, "nvidia.com/gpu": 9}, "OutOfmemory", id="memory before GPUs"),
        pytest.param({"nvidia.com/gpu": 9}, "OutOfnvidia.com/gpu", id="GPUs by their full name"),
        pytest.param({"rdma/hca": 1}, "OutOfrdma/hca", id="a resource the node lacks"),
        pytest.param({"cpu": 4000, "memory": 100, "nvidia.com/gpu": 8, "rdma/hca": 0}, None, id="exactly full fits"),
    ],
)
def test_the_first_shortage_is_told(request_: dict[str, int], reason: str | None) -> None:
    ledger = Ledger({"cpu": 4000, "memory": 100, "nvidia.com/gpu": 8, "pods": 2})
    shortage = ledger.shortage(request_)
    assert (shortage and shortage.reason) == reason


def test_pod_slots_run_out_even_for_pods_that_ask_for_nothing() -> None:
    ledger = Ledger({"pods": 1})
    ledger.admit("a", {})
    assert ledger.shortage({}) == Shortage(resource="pods", requested=1, used=1, capacity=1)


def test_a_pod_that_asks_for_no_cpu_fits_beside_over_committed_cpu() -> None:
    ledger = Ledger({"cpu": 1000, "nvidia.com/gpu": 8, "pods": 110})
    ledger.admit("taken over", {"cpu": 5000})
    assert ledger.shortage({"nvidia.com/gpu": 1}) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4000), st.booleans()), max_size=60))
def test_admitted_pods_never_exceed_what_the_node_has(steps: list[tuple[int, int, bool]]) -> None:
    ledger = Ledger({"cpu": 6000, "pods": 4})
    live: dict[str, int] = {}
    for number, cpu_m, leaves in steps:
        uid = str(number)
        if leaves:
            ledger.release(uid)
            live.pop(uid, None)
        elif uid not in live and ledger.shortage({"cpu": cpu_m}) is None:
            ledger.admit(uid, {"cpu": cpu_m})
            live[uid] = cpu_m
        elif uid not in live:
            assert sum(live.values()) + cpu_m > 6000 or len(live) == 4
        assert sum(live.values()) <= 6000
        assert len(live) <= 4
