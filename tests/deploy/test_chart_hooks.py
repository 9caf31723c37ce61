"""What the chart makes of hooks and of certificates by cert-manager."""

from __future__ import annotations

import json

import pytest

from coda_kube.certificates import SERVER_NAME
from coda_lab.host.paths import crds
from coda_lab.install import objects_in
from coda_operator.certificates import SERVES_BY_SECRET
from tests.deploy.charts import Helm, environ_of, find

pytestmark = pytest.mark.e2e


def test_the_upgrade_applies_the_definitions_of_the_repository(helm: Helm) -> None:
    data = find(helm.render(), "ConfigMap", "coda-definitions")["data"]
    applied = {item["metadata"]["name"]: item for item in map(json.loads, data.values())}
    assert applied == {item["metadata"]["name"]: item for item in objects_in(crds())}
    assert len(json.dumps(data)) < 1 << 20, "a ConfigMap holds at most 1 MiB"


def test_definitions_come_before_a_first_installation_too(helm: Helm) -> None:
    """An uninstallation leaves them, and Helm installs none over them: a newer Coda would wait for its fields."""
    ours = [item for item in helm.render() if item["metadata"]["name"] == "coda-definitions"]
    notes = {item["kind"]: item["metadata"]["annotations"] for item in ours}
    assert {each["helm.sh/hook"] for each in notes.values()} == {"pre-install,pre-upgrade"}
    needed = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap"}
    assert notes.keys() == needed | {"Job"}
    assert all(int(notes[kind]["helm.sh/hook-weight"]) < int(notes["Job"]["helm.sh/hook-weight"]) for kind in needed)


def test_hooks_run_only_where_they_are_wanted(helm: Helm) -> None:
    def hooks(*values: str) -> set[str]:
        items = helm.render(*values)
        return {item["metadata"]["name"] for item in items if "helm.sh/hook" in item["metadata"].get("annotations", {})}

    assert hooks() == {"coda-definitions", "coda-uninstall"}
    assert hooks("definitions.upgrade=false", "uninstall.enabled=false") == set()


@pytest.mark.parametrize(("choice", "deletes"), [("keep", False), ("end", True)])
def test_only_an_uninstallation_that_ends_jobs_may_delete_them(helm: Helm, choice: str, deletes: bool) -> None:
    items = helm.render(f"uninstall.jobs={choice}")
    (rule,) = (
        rule for rule in find(items, "ClusterRole", "coda-uninstall")["rules"] if rule["resources"] == ["trainingjobs"]
    )
    assert ("delete" in rule["verbs"]) is deletes


def test_a_quota_may_ask_the_hooks_for_limits_too(helm: Helm) -> None:
    """It refuses every pod without one, and Helm then waits in vain."""
    for items, expected in ((helm.render(), None), (helm.render("hooks.resources.limits.cpu=2"), 2)):
        for name in ("coda-definitions", "coda-uninstall"):
            (container,) = find(items, "Job", name)["spec"]["template"]["spec"]["containers"]
            assert container["resources"]["limits"].get("cpu") == expected
            assert container["resources"]["limits"]["memory"] == "1Gi"


def test_cert_manager_makes_what_both_sides_mount(helm: Helm) -> None:
    items = helm.render("certificates.issuer=certManager")
    assert environ_of(items, "operator")["CODA_CERTIFICATES"] == "foreign"
    made = {item["spec"]["secretName"]: item["spec"] for item in items if item["kind"] == "Certificate"}
    assert made.keys() == {*SERVES_BY_SECRET, "coda-authority"}
    for secret, serves in SERVES_BY_SECRET.items():
        assert ("server auth" in made[secret]["usages"], "client auth" in made[secret]["usages"]) == (
            serves,
            not serves,
        )
        assert find(items, "Issuer", made[secret]["issuerRef"]["name"])["spec"] == {
            "ca": {"secretName": "coda-authority"}
        }
    assert made["coda-extender-tls"]["dnsNames"] == [SERVER_NAME]
    named = ("certificates.certManager.issuerRef.name=corp", "certificates.certManager.issuerRef.kind=ClusterIssuer")
    items = helm.render("certificates.issuer=certManager", *named)
    issuers = [item["spec"]["issuerRef"] for item in items if item["kind"] == "Certificate"]
    assert issuers == [{"name": "corp", "kind": "ClusterIssuer"}] * 2
    assert not [item for item in items if item["kind"] == "Issuer"]
    assert not [item for item in helm.render() if item["kind"] in ("Issuer", "Certificate")]


def test_an_issuer_of_cert_manager_may_be_an_external_one(helm: Helm) -> None:
    """Each has kinds of its own: AWS Private CA, Google CAS, step-ca, Venafi."""
    reference = {"name": "ca", "kind": "AWSPCAClusterIssuer", "group": "awspca.cert-manager.io"}
    named = [f"certificates.certManager.issuerRef.{key}={value}" for key, value in reference.items()]
    items = helm.render("certificates.issuer=certManager", *named)
    assert [item["spec"]["issuerRef"] for item in items if item["kind"] == "Certificate"] == [reference] * 2
