"""What the notes of an installation say that somebody has to do, as Helm fills them in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from coda_lab.host.paths import chart
from tests.deploy.charts import NAMESPACE, Helm

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


def test_the_page_says_so_before_the_installation() -> None:
    said = PAGE.read_text(encoding="utf-8")
    assert ALLOWS in said
    assert "default StorageClass" in " ".join(said.partition("make images")[0].split())
