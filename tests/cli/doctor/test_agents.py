"""What `coda doctor` says of agents: whether one lives on each node, and what they lack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coda_cli.doctor.finding import Level
from coda_cli.doctor.findings import findings
from coda_kube.failures.node_xids import SILENT_S
from coda_kube.objects.json_types import Json
from tests.cli.doctor.test_findings import NOW_S, WELL, daemon_set, node, profile, told

EVERYWHERE = {"operator": "Exists"}


def agent_set(
    wanted: int, ready: int, namespace: str = "coda-system", *, updated: int | None = None, created: int | None = None
) -> Json:
    there = wanted if created is None else created
    new = there if updated is None else updated
    found = daemon_set("coda-agent", EVERYWHERE)
    found["metadata"]["namespace"] = namespace
    status = {"desiredNumberScheduled": wanted, "currentNumberScheduled": there, "updatedNumberScheduled": new}
    return found | {"status": status | {"numberReady": ready}}


def rolling(found: Json, kind: str, **values: Any) -> Json:
    strategy = {"type": kind} | ({"rollingUpdate": values} if values else {})
    return found | {"spec": found["spec"] | {"updateStrategy": strategy}}


def generations(found: Json, wanted: int, observed: int) -> Json:
    status = found["status"] | {"observedGeneration": observed}
    return found | {"metadata": found["metadata"] | {"generation": wanted}, "status": status}


def test_a_node_whose_agent_is_silent_is_named() -> None:
    silent = profile("n2", written_s=NOW_S - SILENT_S)
    late = profile("n1", written_s=NOW_S - SILENT_S + 1)
    assert told(replace(WELL, profiles=[late, silent])) == [
        (Level.BAD, "agents", "silent for two hours or more on n2"),
    ]
    assert told(replace(WELL, profiles=[late, profile("n2")])) == []


@pytest.mark.parametrize("status", [{}, {"time": "yesterday"}])
def test_an_agent_that_never_said_a_time_is_silent(status: Json) -> None:
    profiles = [profile("n1"), {"metadata": {"name": "n2"}, "status": status}]
    assert told(replace(WELL, profiles=profiles)) == [(Level.BAD, "agents", "silent for two hours or more on n2")]


def test_what_is_left_of_a_node_that_is_gone_or_has_no_gpus_is_not_missed() -> None:
    old = [profile(name, written_s=NOW_S - 9e5) for name in ("gone", "cpu")]
    assert told(replace(WELL, profiles=[profile("n1"), profile("n2"), *old])) == []


@pytest.mark.parametrize(
    ("daemon_set", "says"),
    [
        (agent_set(3, 1), ["2 of 3 are not ready"]),
        (agent_set(3, 3), []),
        (daemon_set("coda-agent", EVERYWHERE), []),
        (agent_set(3, 1, namespace="other"), []),
    ],
)
def test_agents_that_are_not_ready_are_counted(daemon_set: Json, says: list[str]) -> None:
    found = told(replace(WELL, daemon_sets=[daemon_set]))
    assert found == [(Level.BAD, "agents", sentence) for sentence in says]


def test_a_roll_out_is_no_fault() -> None:
    found = told(replace(WELL, daemon_sets=[agent_set(20, 18, updated=4)]))
    assert found == [(Level.NOTE, "agents", "a roll-out: 4 of 20 are new, 18 are ready")]


@pytest.mark.parametrize(
    ("daemon_set", "expected"),
    [
        pytest.param(agent_set(5, 0, created=0), [(Level.BAD, "agents", "5 of 5 have no pod")], id="none"),
        pytest.param(agent_set(5, 4, created=4), [(Level.BAD, "agents", "1 of 5 has no pod")], id="one less"),
        pytest.param(
            agent_set(5, 1, created=4),
            [(Level.BAD, "agents", "1 of 5 has no pod"), (Level.BAD, "agents", "3 of 5 are not ready")],
            id="and others are not ready",
        ),
        pytest.param(
            agent_set(5, 3, created=3, updated=1),
            [(Level.BAD, "agents", "2 of 5 have no pod")],
            id="more than a roll-out takes at once",
        ),
        pytest.param(
            rolling(agent_set(5, 4, created=4, updated=1), "OnDelete"),
            [(Level.BAD, "agents", "1 of 5 has no pod")],
            id="somebody deletes them one by one",
        ),
    ],
)
def test_agents_whose_pods_are_refused_are_no_roll_out(
    daemon_set: Json, expected: list[tuple[Level, str, str]]
) -> None:
    """As where pod security, a quota or OpenShift's SCCs refuse them: no list of pods says so, but events do."""
    seen = replace(WELL, daemon_sets=[daemon_set])
    assert told(seen) == expected
    refused = next(one for one in findings(seen) if one.level is Level.BAD)
    assert refused.fix.startswith("kubectl -n coda-system describe daemonset coda-agent")


@pytest.mark.parametrize(
    ("daemon_set", "also"),
    [
        pytest.param(
            agent_set(5, 3, created=4, updated=1), ["a roll-out: 1 of 5 are new, 3 are ready"], id="some are old"
        ),
        pytest.param(generations(agent_set(5, 4, created=4), 3, 2), [], id="its controller has not counted yet"),
        pytest.param(
            rolling(agent_set(20, 18, created=18, updated=2), "RollingUpdate", maxUnavailable="6%"), [], id="a share"
        ),
    ],
)
def test_a_pod_that_a_roll_out_is_about_to_make_is_a_note(daemon_set: Json, also: list[str]) -> None:
    """Its old pod is gone, and its new one not made: `coda doctor` said that it was refused, and exited with 1."""
    seen = replace(WELL, daemon_sets=[daemon_set])
    first, *rest = [one for one in findings(seen) if (one.about, one.level) == ("agents", Level.NOTE)]
    assert "no pod, in a roll-out" in first.says
    assert "if it stays so" in first.fix
    assert "describe daemonset coda-agent" in first.fix
    assert [one.says for one in rest] == also
    assert not [one for one in findings(seen) if one.level is Level.BAD]


def test_a_node_without_a_profile_is_not_looked_for_among_pods_that_are_not_there() -> None:
    found = [*findings(replace(WELL, profiles=[], daemon_sets=[agent_set(2, 0, created=0)]))]
    fixes = {one.says: one.fix for one in found if one.about == "agents"}
    assert fixes.keys() == {"no NodeProfile of n1 and n2", "2 of 2 have no pod"}
    assert all("describe daemonset" in fix for fix in fixes.values())


def test_agents_of_whom_none_ever_ran_are_not_called_switched_off() -> None:
    found = told(replace(WELL, profiles=[], daemon_sets=[agent_set(2, 0)]))
    assert found == [
        (Level.BAD, "agents", "no NodeProfile of n1 and n2"),
        (Level.BAD, "agents", "2 of 2 are not ready"),
    ]


def test_missing_and_silent_agents_are_both_told() -> None:
    nodes = [node("n1"), node("n2"), node("n3")]
    found = told(replace(WELL, nodes=nodes, profiles=[profile("n1"), profile("n2", written_s=0.0)]))
    assert [says for _, _, says in found] == ["no NodeProfile of n3", "silent for two hours or more on n2"]


def test_an_agent_without_nvml_is_helped_by_what_brings_nvml() -> None:
    """Privileges bring device files, and no library."""
    lacks = ["no NVML: NVML Shared Library Not Found"]
    profiles = [profile(name, lacks=lacks) for name in ("n1", "n2")]
    (found,) = [one for one in findings(replace(WELL, profiles=profiles)) if one.level is not Level.GOOD]
    assert "NVIDIA's container runtime, or set agent.driverPath" in found.fix
