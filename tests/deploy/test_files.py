"""What is shipped fits together: copies are equal, versions agree, the images are made of what was tested."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from coda.policy import PolicyConfig
from coda_agent.settings import Settings as AgentSettings
from coda_extender.settings import Settings as ExtenderSettings
from coda_kube.objects.names import ANNOTATION_USER, GROUP, OPT_IN, SERVICE, THROTTLING
from coda_lab.host import paths
from coda_operator.settings import Settings as OperatorSettings
from tests.deploy.images import FOLDERS, instructions, module_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "installing.md"
PACKAGES = {"operator": "coda_operator", "extender": "coda_extender", "agent": "coda_agent"}

SETTINGS: dict[str, type[BaseModel]] = {
    "operator": OperatorSettings,
    "extender": ExtenderSettings,
    "agent": AgentSettings,
}

# What the chart sets itself, from values of their own, from the pod or by what it mounts.
SET_BY_CHART = {
    "operator": {
        *("kubeconfig", "identity", "host", "metrics_port", "log_level", "pool_mode", "pool_taints"),
        *(
            "history_url",
            "history_url_file",
            "history_ca_file",
            "history_file",
            "failure_rules",
            "metrics_access",
            "certificates",
        ),
    },
    "extender": {
        *("kubeconfig", "identity", "host", "port", "metrics_port", "tls_dir"),
        *("pod_name", "pod_namespace", "topology_levels", "log_level", "metrics_access"),
    },
    "agent": {
        *("kubeconfig", "node_name", "host", "metrics_port", "metrics_access", "log_level", "tune", "throttle"),
        *("proc", "sys", "cgroup", "resctrl", "state_dir", "pod_resources", "pods_dir", "stop_notices"),
        *("sharing", "sharing_socket", "sharing_framework", "sharing_bundle", "sharing_gpu_access", "device_plugins"),
    },
}
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def texts(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.glob("*.yaml")}


def pinned(lock: Path) -> dict[str, str]:
    """Each requirement with its hashes, by name."""
    entries = re.split(r"^(?=\S)", re.sub(r"^\s+#.*\n", "", lock.read_text(), flags=re.MULTILINE), flags=re.MULTILINE)
    return {entry.partition("==")[0]: entry.strip() for entry in entries if entry.strip()}


def test_the_chart_has_the_definitions_of_the_repository() -> None:
    assert texts(paths.chart() / "crds") == texts(paths.crds()), "run `make chart`"


def test_the_chart_has_the_roles_of_the_local_control_plane() -> None:
    shipped = texts(paths.manifests())
    del shipped["namespace.yaml"]  # Helm's --create-namespace makes it
    policies = {name: shipped.pop(name) for name in ("policies.yaml", "cpu-jobs.yaml", "users.yaml")}
    assert texts(paths.chart() / "policies") == policies, "run `make chart`"
    assert texts(paths.chart() / "rbac") == shipped, "run `make chart`"


def test_users_are_offered_the_keys_that_coda_reads_and_no_others() -> None:
    policies = (paths.manifests() / "policies.yaml").read_text()
    (listed,) = re.findall(r"name: userKeys\n +expression: >-\n(.*?) : \[\]", policies, re.DOTALL)
    read = {THROTTLING, OPT_IN, SERVICE}
    assert set(re.findall(r"coda\.scheduler/[\w-]+", listed)) == read
    (known,) = re.findall(r"\$known := list (.*?) -}}", (paths.chart() / "templates" / "_policies.tpl").read_text())
    assert set(known.replace('"', "").split()) == read | {ANNOTATION_USER}
    (told,) = re.findall(r"begin with `coda.scheduler/`, except (.*?)\.", PAGE.read_text(), re.DOTALL)
    assert {f"{GROUP}/{key}" for key in re.findall(r"`([\w-]+)`", told)} == read


def test_chart_and_images_have_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((paths.chart() / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.parametrize("part", SETTINGS)
def test_every_setting_of_a_program_can_be_given_to_the_chart(part: str) -> None:
    fields = set(SETTINGS[part].model_fields)
    assert SET_BY_CHART[part] <= fields
    assert set(settable(part)) == {f"CODA_{name.upper()}" for name in fields - SET_BY_CHART[part]}


@pytest.mark.parametrize("part", SETTINGS)
def test_the_chart_takes_the_numbers_that_a_program_takes(part: str) -> None:
    fields = SETTINGS[part].model_json_schema()["properties"]
    for name, taken in settable(part).items():
        field = fields[name.removeprefix("CODA_").lower()]
        assert {each: taken.get(each) for each in BOUNDS} == {each: field.get(each) for each in BOUNDS}, name


def settable(part: str) -> dict[str, Any]:
    """The settings of a part that the chart's schema knows."""
    schema = json.loads((paths.chart() / "values.schema.json").read_text())
    found: dict[str, Any] = schema["properties"][part]["properties"]["settings"]["properties"]
    return found


def test_the_topology_levels_of_the_chart_are_the_programs_own() -> None:
    values = yaml.safe_load((paths.chart() / "values.yaml").read_text())
    levels = tuple((level["name"], level["label"]) for level in values["topologyLevels"])
    assert levels == PolicyConfig().levels


def test_every_image_installs_what_was_tested() -> None:
    tested = pinned(ROOT / "requirements.lock")
    for folder in FOLDERS.values():
        installed = pinned(ROOT / folder / "requirements.lock")
        assert installed
        assert installed.items() <= tested.items(), f"{folder}/requirements.lock: run `make lock`"


@pytest.mark.parametrize("part", FOLDERS)
def test_an_image_copies_what_exists_and_starts_its_program(part: str) -> None:
    folder, package = FOLDERS[part], PACKAGES[part]
    copied = [line.split()[1] for line in instructions("packages") if line.startswith("COPY ")]
    assert copied == ["${PART}/requirements.lock", "core/coda", "core/coda_kube", "${PART}"]
    assert all((ROOT / source.replace("${PART}", folder)).exists() for source in copied)
    assert [path.name for path in (ROOT / folder).glob("coda_*")] == [package], "it copies one package"
    assert module_of(part) == package
    lines = instructions(folder)
    assert lines[0] == "FROM ${PYTHON_IMAGE}"
    assert "COPY --from=packages /packages /packages" in lines
    if part == "agent":
        assert "COPY dist/framework /framework" in lines, "what jobs on shared GPUs load"
        assert not any(line.startswith("USER ") for line in lines), "it writes limits of other users' pods"
        return
    assert "USER 65532:65532" in lines
    assert "ENV USER=coda HOME=/" in lines, "without them kopf and Path.home() fail for a number that is no user"


def test_each_image_is_made_of_its_part() -> None:
    made = re.findall(r"-t coda-(\w+):\S+ --build-arg PART=(\w+) -f deploy/Dockerfile", (ROOT / "Makefile").read_text())
    assert dict(made) == FOLDERS


def test_what_the_images_copy_is_in_the_build_context() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    for folder in FOLDERS.values():
        for source in (folder, "core/coda", "core/coda_kube"):
            assert f"!{source}" in lines, f"{source} is not sent to the builder"
    assert "!dist/framework" in lines


def test_the_kind_cluster_is_one_that_kind_and_coda_understand() -> None:
    cluster = yaml.safe_load((ROOT / "kind-config.yaml").read_text())
    assert (cluster.pop("kind"), cluster.pop("apiVersion")) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    nodes = cluster.pop("nodes")
    assert set(cluster) <= {"name", "networking", "featureGates", "runtimeConfig", "kubeadmConfigPatches"}
    fields = {"role", "image", "labels", "extraMounts", "extraPortMappings", "kubeadmConfigPatches"}
    assert all(set(node) <= fields for node in nodes)
    assert [node["role"] for node in nodes] == ["control-plane", *["worker"] * (len(nodes) - 1)]
    rack = PolicyConfig().levels[0].label
    racks = [node["labels"][rack] for node in nodes if node["role"] == "worker"]
    assert len(set(racks)) >= 2, "a cluster of one rack shows nothing of locality"
    assert all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", value) for value in racks)
