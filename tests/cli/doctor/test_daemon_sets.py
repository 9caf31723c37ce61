"""What `coda doctor` says of DaemonSets that tolerate the pool's taint: whose next change the policies may refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coda_cli.doctor.finding import Level
from coda_cli.doctor.findings import findings
from coda_kube.objects.json_types import Json
from tests.cli.doctor.test_findings import WELL, daemon_set, told

ALL = {"operator": "Exists"}
SAYS = "the policies let only an administrator or an account of the pool change "
BY_HAND = (
    *("helm", "helm3", "helm.exe", "kubectl.exe", "oc.exe", "terraform-provider-helm_v2.17.0_x5"),
    *("HashiCorp", "Terraform"),
)  # Terraform's provider of Kubernetes, by its user agent and by its default


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
        (written_by("helmsman"), "helmsman"),
        *((written_by(program), "") for program in BY_HAND),
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


def good_lines(**changes: Any) -> list[str]:
    found = findings(replace(WELL, **changes))
    return [one.says for one in found if (one.level, one.about) == (Level.GOOD, "DaemonSets")]


def test_daemon_sets_made_by_hand_are_listed_too() -> None:
    """One that a user made while the policies only warned is there for ever: its pods pass."""
    found = [written_by("helm", "kubectl-edit", namespace=f"n{number}") for number in range(5)]
    (line,) = good_lines(daemon_sets=[*found, written_by("helm", namespace="kube-system"), written_by("operator")])
    assert line == (
        "on nodes of the pool, as made by hand: n0/d (helm, kubectl-edit), n1/d (helm, kubectl-edit), "
        "n2/d (helm, kubectl-edit), n3/d (helm, kubectl-edit) and n4/d (helm, kubectl-edit)"
    )
    assert good_lines(daemon_sets=[written_by("helm", tolerates={"key": "gpu", "operator": "Exists"})]) == []


ACCOUNT = {"kind": "ServiceAccount", "namespace": "openshift-dns-operator", "name": "dns-operator"}


def test_where_accounts_of_the_pool_are_named_an_operators_daemon_set_is_no_note() -> None:
    """It is not seen whose they are, so the line says so."""
    operators = [written_by("dns-operator"), daemon_set("plugin", {"key": "coda.scheduler/pool"})]
    accounts = {"subjects": [ACCOUNT, {"kind": "Group", "name": "sre"}]}
    assert good_lines(daemon_sets=operators, pool_accounts=accounts)[0] == (
        "accounts of the pool may change dns/d (now: dns-operator): openshift-dns-operator/dns-operator and sre; "
        "it is not seen whether its makers are among them"
    )
    for nobody in ({}, {"subjects": None}, None):
        found = told(replace(WELL, daemon_sets=operators, pool_accounts=nobody))
        assert [one for one in found if SAYS in one[2]] == [
            (Level.NOTE, "DaemonSets", f"{SAYS}dns/d (now: dns-operator)")
        ]
