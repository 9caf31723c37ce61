"""The load is a pure function of the seed, and every job in it can run and end as it says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from coda_kube.objects import names
from coda_lab.experiments.load.plans import (
    CLASSES,
    EXIT_CODE,
    LARGEST_GANG,
    TENANTS,
    TENANTS_RANKS,
    TURN,
    Act,
    End,
    JobPlan,
    edit_json,
    foreign_pods,
    job_json,
    jobs,
    of_all_classes,
    of_tenants,
    pod_json,
    with_tuned_cores,
)
from coda_lab.kubelets.behaviour import behaviour_from_metadata


def first_jobs(seed: int, count: int = 500, *, nodes: int = 100, gpus_per_node: int = 8) -> list[JobPlan]:
    return list(islice(jobs(seed, nodes=nodes, gpus_per_node=gpus_per_node), count))


def rank_behaviour(plan: JobPlan, rank: int, attempt: int) -> tuple[float | None, int]:
    metadata = dict(job_json(plan)["spec"]["template"]["metadata"])
    metadata["labels"] = {names.LABEL_RANK: str(rank), names.LABEL_ATTEMPT: str(attempt)}
    behaviour = behaviour_from_metadata(metadata)
    return behaviour.run_s, behaviour.exit_code


def plan(**changes: object) -> JobPlan:
    usual: dict[str, object] = {
        "name": "j",
        "replicas": 4,
        "gpus_per_replica": 2,
        "cpus_per_replica": 1,
        "run_s": 8.0,
    }
    return JobPlan(**(usual | changes))  # type: ignore[arg-type]  # the fields' types are checked where they are used


def test_the_same_seed_gives_the_same_load_and_another_another() -> None:
    assert first_jobs(1) == first_jobs(1)
    assert first_jobs(1) != first_jobs(2)
    assert list(islice(foreign_pods(1), 50)) == list(islice(foreign_pods(1), 50))


def test_jobs_with_one_gpu_in_each_rank_are_of_every_class_and_the_same_jobs_otherwise() -> None:
    plain = list(islice(jobs(1, nodes=12, gpus_per_node=8), 200))
    shared = list(islice(of_all_classes(jobs(1, nodes=12, gpus_per_node=8), 1), 200))
    assert [replace(one, service_class="") for one in shared] == plain
    assert {one.service_class for one in shared if one.gpus_per_replica == 1} == set(CLASSES)
    assert {one.service_class for one in shared if one.gpus_per_replica > 1} == {""}
    specs = [job_json(one)["spec"] for one in shared]
    assert all(("gpuMemory" in spec) == ("serviceClass" in spec) for spec in specs)


def test_one_tenant_after_the_other_asks_for_most() -> None:
    found = list(islice(of_tenants(jobs(1, nodes=12, gpus_per_node=8), 1), 200))
    assert all(one.failing_rank is None or one.failing_rank < one.replicas <= TENANTS_RANKS for one in found)
    turns = [Counter(one.namespace for one in found[start : start + TURN]) for start in range(0, 200, TURN)]
    assert [turn.most_common(1)[0][0] for turn in turns[:3]] == list(TENANTS)
    specs = [job_json(one)["spec"] for one in found]
    assert all("resumable" in spec for spec in specs if "stopNoticeSeconds" in spec)
    assert {spec.get("stopNoticeSeconds") for spec in specs} == {None, 2, 8}


def test_some_jobs_leave_their_cores_to_the_allocator() -> None:
    specs = [job_json(one)["spec"] for one in islice(with_tuned_cores(jobs(1, nodes=12, gpus_per_node=8), 1), 100)]
    assert 20 < sum(spec["cpusPerReplica"] == "auto" for spec in specs) < 40


def test_the_load_holds_everything_that_can_happen_to_a_job() -> None:
    found = first_jobs(1)
    assert {each.act for each in found} == {None, *Act}
    assert {each.ends for each in found} >= {
        frozenset({End.SUCCEEDED}),
        frozenset({End.FAILED}),
        frozenset({End.SUCCEEDED, End.DELETED}),
    }
    assert min(each.replicas for each in found) == 1
    assert max(each.replicas for each in found) > LARGEST_GANG // 2
    assert all(1 <= each.run_s <= 20 for each in found)


@pytest.mark.parametrize(("nodes", "gpus_per_node"), [(1, 1), (2, 8), (12, 8), (100, 8), (50, 4)])
def test_no_gang_is_larger_than_the_cluster(nodes: int, gpus_per_node: int) -> None:
    for each in first_jobs(3, nodes=nodes, gpus_per_node=gpus_per_node):
        assert each.gpus_per_replica <= gpus_per_node
        assert each.replicas <= min(LARGEST_GANG, nodes * (gpus_per_node // each.gpus_per_replica))


def test_a_job_that_fails_by_itself_has_no_attempt_left_for_anything_else() -> None:
    for each in first_jobs(4):
        if each.failing_rank is None:
            continue
        assert each.failing_rank < each.replicas
        assert each.fails_always or each.retries >= 1


def test_a_rank_that_always_fails_does_so_in_every_attempt_and_alone() -> None:
    failing = plan(failing_rank=2, fails_always=True)
    assert [rank_behaviour(failing, rank, 3) for rank in (1, 2)] == [(8.0, 0), (4.0, EXIT_CODE)]


def test_a_rank_that_fails_once_fails_in_the_first_attempt_only() -> None:
    failing = plan(failing_rank=2)
    assert [rank_behaviour(failing, 2, attempt) for attempt in (1, 2)] == [(4.0, EXIT_CODE), (8.0, 0)]


@pytest.mark.parametrize(
    ("act", "patch"),
    [
        pytest.param(Act.ALLOW_RETRIES, {"spec": {"retries": 4}}, id="retries"),
        pytest.param(Act.MORE_CORES, {"spec": {"cpusPerReplica": 2}}, id="cores"),
        pytest.param(Act.FEWER_RANKS, {"spec": {"replicas": 2}}, id="ranks"),
    ],
)
def test_an_edit_changes_one_field(act: Act, patch: object) -> None:
    assert edit_json(plan(act=act)) == patch


def test_a_foreign_pod_is_for_the_default_profile_and_ends_by_itself() -> None:
    for each in islice(foreign_pods(1), 50):
        pod = pod_json(each)
        assert "schedulerName" not in pod["spec"]
        assert behaviour_from_metadata(pod["metadata"]).run_s == each.run_s
        assert (names.GPU in pod["spec"]["containers"][0]["resources"]["limits"]) is bool(each.gpus)
