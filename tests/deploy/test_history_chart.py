"""What the chart makes of the history's values: a volume, or the Secrets of a database."""

from __future__ import annotations

import pytest

from tests.deploy.charts import Helm, container_of, environ_of, find, pod_of

pytestmark = pytest.mark.e2e

WITH_POSTGRESQL = ("history.database=postgresql", "history.postgresql.secretName=history", "operator.replicas=2")


def test_sqlite_has_a_volume_and_one_operator_at_a_time(helm: Helm) -> None:
    items = helm.render()
    deployment, pod = find(items, "Deployment", "coda-operator")["spec"], pod_of(items, "operator")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    (volume,) = pod["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "coda-history"}
    assert container_of(items, "operator")["volumeMounts"] == [{"name": "history", "mountPath": "/var/lib/coda"}]
    assert pod["securityContext"]["fsGroup"] == 65532
    claim = find(items, "PersistentVolumeClaim", "coda-history")
    assert claim["spec"] == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    own = helm.render("history.sqlite.existingClaim=mine")
    assert pod_of(own, "operator")["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "mine"}
    assert not [item for item in own if item["kind"] == "PersistentVolumeClaim"]


@pytest.mark.parametrize("values", [WITH_POSTGRESQL, ("history.database=none", "operator.replicas=2")])
def test_other_histories_need_no_volume_and_allow_two_operators(helm: Helm, values: tuple[str, ...]) -> None:
    items = helm.render(*values)
    assert find(items, "Deployment", "coda-operator")["spec"]["replicas"] == 2
    assert not [it for it in pod_of(items, "operator")["spec"].get("volumes", []) if "persistentVolumeClaim" in it]
    assert not [item for item in items if item["kind"] == "PersistentVolumeClaim"]


def test_the_url_of_a_database_is_mounted_so_that_its_password_may_change(helm: Helm) -> None:
    items = helm.render(*WITH_POSTGRESQL, "history.postgresql.secretKey=uri")
    variables = {item["name"]: item for item in container_of(items, "operator")["env"] if "HISTORY" in item["name"]}
    assert variables == {"CODA_HISTORY_URL_FILE": {"name": "CODA_HISTORY_URL_FILE", "value": "/etc/coda/history/url"}}
    mount = {"name": "history-secret", "mountPath": "/etc/coda/history", "readOnly": True}
    assert container_of(items, "operator")["volumeMounts"] == [mount]
    url = {"name": "history", "items": [{"key": "uri", "path": "url"}]}
    (volume,) = pod_of(items, "operator")["spec"]["volumes"]
    assert volume == {"name": "history-secret", "projected": {"sources": [{"secret": url}]}}


def test_the_authority_of_a_database_is_mounted_beside_its_url(helm: Helm) -> None:
    items = helm.render(*WITH_POSTGRESQL, "history.postgresql.caSecretName=database-ca")
    assert environ_of(items, "operator")["CODA_HISTORY_CA_FILE"] == "/etc/coda/history/ca.crt"
    (volume,) = pod_of(items, "operator")["spec"]["volumes"]
    url, authority = (source["secret"] for source in volume["projected"]["sources"])
    assert url == {"name": "history", "items": [{"key": "url", "path": "url"}]}
    assert authority == {"name": "database-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
