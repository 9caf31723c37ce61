"""Nodes that are kept for trials: nobody else may tolerate their taint, by no way that a user has."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.accounts import Account, Asker, asking
from tests.e2e.cpu_jobs import ANN, BATCH, opt_in
from tests.e2e.jobs import job_json
from tests.e2e.policy_cases import (
    ALL,
    DAEMON_SETS,
    GATE,
    MASTER,
    MINE,
    OPERATOR,
    PODS,
    REPLICA_SETS,
    USER,
    daemon_set,
    key,
    owner,
    pod,
)

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="1x8x48", racks=1, extenders=1)
TRIALS: Json = {"key": key("trials"), "operator": "Exists"}
ONCE: Json = TRIALS | {"effect": "NoSchedule"}
SAID = "only trials tolerate the taint coda.scheduler/trials"
DAEMONS = "/apis/apps/v1/namespaces/default/daemonsets"
JOBS = "/apis/coda.scheduler/v1alpha1/namespaces/default/trainingjobs"


@pytest.fixture
async def asker(cluster: LocalCluster) -> AsyncIterator[Asker]:
    async with asking(cluster) as found:
        yield found


def job(*tolerations: Json) -> Json:
    made = job_json("tolerant")
    made["spec"]["template"]["spec"]["tolerations"] = list(tolerations)
    return made


def of_daemon_set() -> Json:
    return pod(tolerations=[TRIALS], metadata=owner("DaemonSet", "apps/v1"))


@pytest.mark.parametrize(
    ("account", "path", "body", "refused"),
    [
        pytest.param(USER, PODS, pod(tolerations=[TRIALS]), True, id="a pod"),
        pytest.param(USER, PODS, pod(tolerations=[ONCE]), True, id="a pod, by the effect"),
        pytest.param(REPLICA_SETS, PODS, pod(tolerations=[TRIALS]), True, id="a pod of a template"),
        pytest.param(OPERATOR, PODS, pod(tolerations=[TRIALS]), False, id="the operator makes trials"),
        pytest.param(DAEMON_SETS, PODS, of_daemon_set(), False, id="a daemon of the platform"),
        pytest.param(MASTER, PODS, pod(tolerations=[TRIALS]), False, id="an administrator's pod"),
        pytest.param(USER, DAEMONS, daemon_set(TRIALS), True, id="a user's daemon"),
        pytest.param(MASTER, DAEMONS, daemon_set(TRIALS), False, id="the platform's daemon"),
        pytest.param(USER, JOBS, job(TRIALS), True, id="a job, whose pods the operator makes"),
        pytest.param(USER, JOBS, job(ONCE), True, id="a job, by the effect"),
        pytest.param(USER, JOBS, job(MINE, ALL), False, id="a job that tolerates all, which is not enough for Coda"),
        pytest.param(MASTER, JOBS, job(TRIALS), False, id="an administrator's job"),
    ],
)
async def test_only_trials_tolerate_the_taint_of_their_nodes(
    asker: Asker, account: Account, path: str, body: Json, refused: bool
) -> None:
    answer = await asker.ask(account, "POST", path, body)
    assert answer.refused_by_policy == refused, answer
    assert SAID in answer.message if refused else answer.status == 201


async def test_a_cpu_job_that_coda_places_goes_to_no_node_for_trials(asker: Asker, admin: Client) -> None:
    """Its gate lets it tolerate the pool, and no more."""
    await opt_in(admin)
    pods = f"/api/v1/namespaces/{BATCH}/pods"
    waiting = await asker.ask(ANN, "POST", pods, pod(tolerations=[MINE]))
    assert waiting.status == 201, waiting
    assert waiting.item["spec"]["schedulingGates"] == GATE
    answer = await asker.ask(ANN, "POST", pods, pod(tolerations=[MINE, TRIALS]))
    assert answer.refused_by_policy, answer
    assert SAID in answer.message
