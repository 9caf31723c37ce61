"""Host ports of foreign pods: judged only against those that placements withhold. kube-scheduler knows all others."""

from __future__ import annotations

from typing import Any

import pytest

from coda_extender.guard.guard import WITHHELD
from coda_extender.protocol import Answer
from tests.extender.guards import Known
from tests.extender.objects import placement, pod_json

PORT = 8080
NEEDS_IT = {"resources": {"nvidia.com/gpu": "2", f"hostPort/{PORT}-TCP": "1"}, "cpusPerReplica": 4}


def with_port(name: str, *, ip: str | None = None, gpus: int = 0, node: str | None = None) -> dict[str, Any]:
    pod = pod_json(name, gpus=gpus, node=node)
    port = {"containerPort": PORT, "hostPort": PORT} | ({"hostIP": ip} if ip else {})
    pod["spec"]["containers"][0]["ports"] = [port]
    return pod


def test_foreign_pods_on_one_port_do_not_shut_each_other_out_beside_a_starting_gang(known: Known) -> None:
    """Each replica of an ingress waited for the bind of the one before, though the gang needs no port."""
    known.job("gang", gpus=2, replicas=3, placement=placement("n1", "n2", "n3"))
    for name in ("first", "second", "third"):
        assert known.ask(with_port(name), "n1", "n2", "n3") == Answer(passed=["n1", "n2", "n3"], refused={})


def test_a_bound_pod_on_another_address_keeps_nobody_out(known: Known) -> None:
    """kube-scheduler lets both have the port: addresses are told apart there, and not here."""
    known.pod(None, with_port("local", ip="127.0.0.1", node="n1"))
    known.job("gang", gpus=2, placement=placement("n1"))
    assert known.ask(with_port("service", ip="10.0.0.5"), "n1", "n2").passed == ["n1", "n2"]
    known.pod(None, pod_json("six", gpus=6, node="n1"))
    urgent = with_port("urgent", ip="10.0.0.5", gpus=4)
    assert known.evictable_nodes(urgent, n1=("uid-six",)) == ["n1"]


def test_pods_in_flight_count_for_all_but_their_ports(known: Known) -> None:
    known.job("gang", gpus=6, placement=placement("n1"))
    assert known.ask(with_port("one", gpus=2), "n1").passed == ["n1"]
    assert known.ask(with_port("two", gpus=2), "n1") == Answer(passed=[], refused={"n1": WITHHELD})
    assert known.ask(with_port("three"), "n1").passed == ["n1"]


def test_pods_in_flight_on_the_port_forbid_no_eviction(known: Known) -> None:
    known.job("gang", gpus=2, placement=placement("n1"))
    known.pod(None, pod_json("six", gpus=6, node="n1"))
    assert known.ask(with_port("first"), "n1").passed == ["n1"]
    assert known.evictable_nodes(with_port("urgent", gpus=4), n1=("uid-six",)) == ["n1"]


@pytest.mark.parametrize("ip", [None, "10.0.0.5"])
def test_a_port_that_a_gang_needs_is_kept_whoever_else_has_it(known: Known, ip: str | None) -> None:
    known.job("gang", gpus=2, placement=placement("n1"), request=NEEDS_IT)
    known.pod(None, with_port("other", ip="127.0.0.1", gpus=4, node="n1"))
    for name in ("first", "second"):
        assert known.ask(with_port(name, ip=ip), "n1", "n2") == Answer(passed=["n2"], refused={"n1": WITHHELD})
    urgent = with_port("urgent", ip=ip, gpus=4)
    assert known.evictable_nodes(urgent, n1=("uid-other",), n2=()) == ["n2"]


def test_a_port_that_is_taken_is_not_free_for_a_job(known: Known) -> None:
    """It is the planner that asks so, and for a rank kube-scheduler looks at one node only."""
    known.pod(None, with_port("other", node="n1"))
    (name,) = (name for name in known.guard.free_beside_all(["n1"])["n1"].other if name.startswith("hostPort/"))
    assert known.guard.free_beside_all(["n1"])["n1"].other[name] == -1
