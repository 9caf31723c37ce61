"""What `coda doctor` says of DaemonSets whose operators the admission policies would refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coda_cli.doctor.finding import Level
from coda_kube.objects.json_types import Json
from tests.cli.doctor.test_findings import WELL, daemon_set, told

ALL = {"operator": "Exists"}
SAYS = "the policies let only an administrator or an account of the pool change "


def written_by(*programs: str, tolerates: Json = ALL, namespace: str = "dns") -> Json:
    found = daemon_set("d", tolerates)
    fields: Json = {"f:spec": {"f:template": {"f:spec": {"f:containers": {}}}}}
    managers: list[Json] = [{"manager": program, "fieldsV1": fields} for program in programs]
    counts = {"manager": "kube-controller-manager", "subresource": "status", "fieldsV1": {"f:status": {}}}
    found["metadata"] |= {"namespace": namespace, "managedFields": [*managers, counts]}
    return found


@pytest.mark.parametrize(
    ("found", "who"),
    [
        (written_by("dns-operator"), "dns-operator"),
        (written_by("kubectl-edit", "b", "a"), "a, b"),
        (written_by("operator", tolerates={"key": "coda.scheduler/pool", "effect": "NoSchedule"}), "operator"),
        (written_by(), "its maker"),
        (written_by("helm"), ""),
        (written_by("kubectl-client-side-apply", "oc"), ""),
        (written_by("operator", tolerates=ALL | {"effect": "PreferNoSchedule"}), ""),
        (written_by("operator", tolerates={"key": "gpu", "operator": "Exists"}), ""),
        (written_by("operator", namespace="kube-system"), ""),
        (written_by("operator", namespace="coda-system"), ""),
        (written_by("operator", namespace="labelled"), ""),
    ],
)
def test_daemon_sets_that_their_operators_cannot_change_are_named(found: Json, who: str) -> None:
    name = f"{found['metadata']['namespace']}/d"
    expected = [(Level.NOTE, "DaemonSets", f"{SAYS}{name} (now: {who})")] if who else []
    namespaces = [
        *(WELL.namespaces or ()),
        {"metadata": {"name": "labelled", "labels": {"coda.scheduler/pool": "true"}}},
    ]
    kept_out = "not on nodes of the pool"
    seen = told(replace(WELL, daemon_sets=[found], namespaces=namespaces))
    assert [one for one in seen if one[1] == "DaemonSets" and kept_out not in one[2]] == expected


@pytest.mark.parametrize("unread", [{"namespaces": None}, {"daemon_sets": None}, {"refusing": []}])
def test_none_is_named_where_one_may_not_look_or_nothing_refuses(unread: dict[str, Any]) -> None:
    seen = replace(WELL, **{"daemon_sets": [written_by("operator")]} | unread)
    assert not [one for one in told(seen) if one[1] == "DaemonSets"]
