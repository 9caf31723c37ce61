"""What the notes of an installation say that somebody has to do, as Helm fills them in."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from coda_lab.host.paths import chart
from tests.deploy.charts import NAMESPACE, Helm, Json
from tests.deploy.test_policy_action import Cluster, in_sight_of

pytestmark = pytest.mark.e2e

SHOWN = """
apiVersion: v1
kind: ConfigMap
metadata: {name: shown}
data: {said: {{ tpl (.Files.Get "notes.txt") . | quote }}}
"""
OPENSHIFT = ("--api-versions", "security.openshift.io/v1")
ALLOWS = "oc adm policy add-scc-to-user privileged -z coda-agent -n coda-system"
VOLUME = "kubectl -n coda-system get pvc coda-history"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "installing.md"


def notes(helm: Helm, folder: Path, *words: str) -> str:
    """`helm template` shows no notes, so an object of a copied chart has them."""
    copied = folder / "chart"
    shutil.copytree(chart(), copied)
    shutil.copy(chart() / "templates" / "NOTES.txt", copied / "notes.txt")
    (copied / "templates" / "shown.yaml").write_text(SHOWN)
    where = ("--namespace", NAMESPACE, "--kube-version", "v1.36.3", "--show-only", "templates/shown.yaml")
    ended = helm.run("template", "coda", str(copied), *where, *words)
    assert ended.returncode == 0, ended.stderr
    return str(yaml.safe_load(ended.stdout)["data"]["said"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(OPENSHIFT, True, id="OpenShift"),
        pytest.param((*OPENSHIFT, "--set", "agent.enabled=false"), False, id="OpenShift without agents"),
        pytest.param((), False, id="elsewhere"),
    ],
)
def test_openshift_must_allow_the_agent(helm: Helm, tmp_path: Path, words: tuple[str, ...], expected: bool) -> None:
    assert (ALLOWS in notes(helm, tmp_path, *words)) is expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param("history.database=sqlite", True, id="the default class"),
        pytest.param("history.sqlite.storageClassName=fast", False, id="a named class"),
        pytest.param("history.sqlite.existingClaim=mine", False, id="a claim of one's own"),
        pytest.param("history.database=none", False, id="no history"),
    ],
)
def test_a_volume_needs_a_class(helm: Helm, tmp_path: Path, values: str, expected: bool) -> None:
    assert (VOLUME in notes(helm, tmp_path, "--set", values)) is expected


ENFORCE = "pod-security.kubernetes.io/enforce"
RAISES = f"kubectl label namespace coda-system {ENFORCE}=privileged --overwrite"
BY_DEFAULT = "as Talos does"


@pytest.mark.parametrize(
    ("labels", "command", "by_default"),
    [
        pytest.param({}, True, True, id="the cluster's default"),
        pytest.param({ENFORCE: "baseline"}, True, False, id="baseline"),
        pytest.param({ENFORCE: "privileged"}, False, False, id="privileged"),
    ],
)
async def test_the_namespace_must_admit_the_agent(
    helm: Helm, tmp_path: Path, labels: Json, command: bool, by_default: bool
) -> None:
    """A cluster may enforce a level in namespaces without the label, and the API server does not say so."""
    cluster = Cluster(objects={f"namespaces/{NAMESPACE}": [{"metadata": {"name": NAMESPACE, "labels": labels}}]})
    cluster.objects |= {"pods": [], "namespaces": [], "nodes": []}
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", cluster.answer)
    async with TestServer(application, host="127.0.0.1") as server:
        cluster.url = f"http://127.0.0.1:{server.port}"
        said = await asyncio.to_thread(notes, helm, tmp_path, *in_sight_of(cluster))
    assert (RAISES in said, BY_DEFAULT in said) == (command, by_default)


@pytest.mark.parametrize("enabled", [True, False])
def test_without_agents_no_namespace_must_admit_them(helm: Helm, tmp_path: Path, enabled: bool) -> None:
    assert (RAISES in notes(helm, tmp_path, "--set", f"agent.enabled={str(enabled).lower()}")) is enabled


def test_the_page_says_so_before_the_installation() -> None:
    said = PAGE.read_text(encoding="utf-8")
    assert ALLOWS in said
    assert "default StorageClass" in " ".join(said.partition("make images")[0].split())
