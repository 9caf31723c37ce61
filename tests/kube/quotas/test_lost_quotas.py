"""When a tenant came to own less: gangs that it puts beyond their own are spared for a while, and no others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from coda.cycle import decide
from coda.model import Job
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time
from tests.core.tenants.test_lent_gpus import CODA, full, of, runs, stopped, world_of
from tests.kube.quotas.test_virtual_clusters import OLD, vc_json

START_S = seconds_from_time(OLD) + 100_000.0
SPARED_S = 600.0  # the minimum run time
GANGS = [*full(of("vision", "old"), of("speech", "s1")), of("speech", "owner")]
BOTH = (vc_json("speech", "speech", quota={"gpus": 16}), vc_json("vision", "vision", quota={"gpus": 8}))
FULL_ORG = (
    vc_json("org", quota={"gpus": 24}),
    *(vc_json(name, name, parent="org", quota={"gpus": 8}) for name in ("red", "blue", "green")),
)


class Cluster:
    """What an extender knows, that runs since `START_S` and sees VirtualClusters change."""

    def __init__(self, *items: Json, now_s: float = START_S) -> None:
        self.now_s = now_s
        self.state = ClusterState(now_s=lambda: self.now_s)
        self._items: dict[str, Json] = {}
        self.set(*items)

    def set(self, *items: Json) -> None:
        """Those of one moment."""
        for item in items:
            name = item["metadata"]["name"]
            self.state.on_virtual_cluster(self._items.get(name), item)
            self._items[name] = item
        self.state.snapshot()

    def delete(self, name: str) -> None:
        self.state.on_virtual_cluster(self._items.pop(name), None)
        self.state.snapshot()

    def stops(self, jobs: list[Job], nodes: int = 2) -> list[str]:
        tenants = self.state.snapshot().virtual_clusters
        return stopped(decide(world_of(jobs, nodes, tenants), CODA, self.now_s))


def edited_at(item: Json, at: str) -> Json:
    """As the API server shows it. Labels of the same manager count as well."""
    fields: Json = {"f:metadata": {"f:labels": {"f:chart": {}}}, "f:spec": {"f:quota": {"f:gpus": {}}}}
    return item | {"metadata": item["metadata"] | {"managedFields": [{"time": at, "fieldsV1": fields}]}}


@pytest.mark.parametrize(
    "smaller",
    [
        pytest.param([vc_json("vision", "vision", quota={"gpus": 4})], id="a smaller quota"),
        pytest.param([vc_json("vision", "vision", quota={"cpus": 9})], id="a line that is deleted"),
        pytest.param([vc_json("vision", quota={"gpus": 8}), vc_json("lab", "vision")], id="a namespace that moves"),
        pytest.param(
            [vc_json("org", quota={"gpus": 4}), vc_json("vision", "vision", parent="org", quota={"gpus": 8})],
            id="a parent that owns less",
        ),
    ],
)
def test_a_gang_is_spared_for_a_while_once_its_tenant_owns_less(smaller: list[Json]) -> None:
    cluster, jobs = Cluster(*BOTH), GANGS
    assert cluster.stops(jobs) == []
    cluster.now_s += 5000.0
    cluster.set(*smaller)
    if smaller[-1]["metadata"]["name"] == "lab":
        jobs = [runs(of("lab", "old"), "n0"), *jobs[1:]]
    cluster.now_s += SPARED_S - 1
    assert cluster.stops(jobs) == []
    cluster.now_s += 1
    assert len(cluster.stops(jobs)) == 1


def test_a_sibling_that_is_renamed_stops_nobody_in_a_full_organisation() -> None:
    """As the documents say: the new one first, then the old one goes. Meanwhile each part is smaller."""
    jobs = [runs(of("red", "r1"), "n0"), runs(of("blue", "b1"), "n1"), runs(of("", "x"), "n2", since_s=START_S - 10)]
    jobs.append(of("green", "owner", gpus=4, queued_s=START_S))
    cluster = Cluster(*FULL_ORG)
    assert cluster.stops(jobs, 3) == []
    cluster.set(vc_json("red2", "red", parent="org", created="2026-01-02T00:00:00Z", quota={"gpus": 8}))
    assert cluster.stops(jobs, 3) == []
    cluster.delete("red")
    cluster.now_s += SPARED_S
    jobs[0] = runs(of("red2", "r1"), "n0")
    assert cluster.stops(jobs, 3) == ["none/x"]


def test_an_edit_that_takes_nothing_spares_nobody() -> None:
    """Labels, weights, more GPUs, less for others: not even all at once, and again and again."""
    cluster = Cluster(BOTH[0], vc_json("vision", "vision", quota={"gpus": 4}))
    for number in range(3):
        cluster.now_s += 100.0
        more: dict[str, Any] = {"weight": 2 + number, "quota": {"gpus": 5 + number}, "mayBorrow": number != 1}
        cluster.set(edited_at(vc_json("vision", "vision", **more), "2026-01-02T03:46:40Z"))
        cluster.set(vc_json("lab", quota={"gpus": 9 - number}))
        assert cluster.stops(GANGS) == ["vision/old"]


def test_who_has_a_child_first_may_own_less_itself() -> None:
    jobs = [runs(of("org", "old"), "n0"), runs(of("red", "r1", gpus=4), "n1"), of("red", "owner")]
    org = vc_json("org", "org", quota={"gpus": 12})
    cluster = Cluster(org)
    cluster.set(vc_json("red", "red", parent="org", quota={"gpus": 12}))
    assert cluster.stops(jobs) == []
    cluster.now_s += SPARED_S
    assert cluster.stops(jobs) == ["org/old"]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        pytest.param(START_S - SPARED_S + 10, [], id="lately"),
        pytest.param(START_S - SPARED_S, ["vision/old"], id="long ago"),
        pytest.param(START_S + 86_400, ["vision/old"], id="a clock was a day ahead once"),
        pytest.param(START_S + 5, [], id="a clock is a little ahead"),
    ],
)
def test_after_a_restart_the_time_of_the_last_edit_counts(at: float, expected: list[str]) -> None:
    text = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    small = edited_at(vc_json("vision", "vision", quota={"gpus": 4}), text)
    cluster = Cluster(BOTH[0], small)
    assert cluster.stops(GANGS) == expected
    cluster.now_s += SPARED_S + 10
    assert cluster.stops(GANGS) == ["vision/old"]


def test_a_restart_between_spares_nobody_who_was_not_edited() -> None:
    assert Cluster(BOTH[0], vc_json("vision", "vision", quota={"gpus": 4})).stops(GANGS) == ["vision/old"]
