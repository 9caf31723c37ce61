"""`make kind-up`, as far as it shows without Docker: what it would do, and that the chart takes its values."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.charts import Helm, container_of, pod_of

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy" / "kind" / "up.sh"


def planned() -> list[list[str]]:
    environ = {**os.environ, "DRY_RUN": "1"}
    ended = subprocess.run([str(SCRIPT)], env=environ, cwd="/", check=True, capture_output=True, text=True)
    return [shlex.split(line) for line in ended.stdout.splitlines()]


def test_it_touches_no_other_cluster() -> None:
    commands = planned()
    assert {words[0] for words in commands} == {"kind", "make", "kubectl", "helm"}
    for words in commands:
        if words[0] == "kubectl":
            assert words[1:3] == ["--context", "kind-coda"]
        if words[0] == "helm":
            assert words[words.index("--kube-context") + 1] == "kind-coda"
        if words[:2] == ["kind", "load"]:
            assert words[words.index("--name") + 1] == "coda"


def test_every_worker_of_the_cluster_joins_the_pool_with_gpus() -> None:
    nodes = yaml.safe_load((ROOT / "kind-config.yaml").read_text())
    count = sum(node["role"] == "worker" for node in nodes["nodes"])
    names = [f"{nodes['name']}-worker{number if number > 1 else ''}" for number in range(1, count + 1)]
    tainted = [words[words.index("nodes") + 1] for words in planned() if "taint" in words]
    patched = {words[words.index("node") + 1]: words[-1] for words in planned() if "patch" in words}
    assert tainted == list(patched) == names
    assert {yaml.safe_load(patch)["status"]["capacity"]["nvidia.com/gpu"] for patch in patched.values()} == {"8"}


def test_what_is_loaded_is_what_is_built_and_the_files_exist() -> None:
    (loaded,) = ([word for word in words if ":" in word] for words in planned() if words[:2] == ["kind", "load"])
    built = set(re.findall(r"-t (coda-\w+):", (ROOT / "Makefile").read_text()))
    assert {name.partition(":")[0] for name in loaded} == built - {"coda-agent"}
    files = [
        words[words.index(flag) + 1]
        for words in planned()
        for flag in ("--values", "--filename", "--config")
        if flag in words
    ]
    assert len(files) == 3
    assert all((ROOT / file).is_file() for file in files)


def test_it_says_which_program_is_missing(tmp_path: Path) -> None:
    for name in ("bash", "dirname", "sed", "env"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    ended = subprocess.run([str(SCRIPT)], env={"PATH": str(tmp_path)}, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("kind-up needs docker: install it, or try `make demo`")


def test_the_script_has_no_fault_that_a_reader_of_scripts_knows() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, str(SCRIPT)], check=True)


@pytest.mark.e2e
def test_the_chart_takes_its_values(helm: Helm) -> None:
    items = helm.render(more=["--values", str(ROOT / "deploy" / "kind" / "values.yaml")])
    for part in ("operator", "extender", "scheduler"):
        own, *_ = pod_of(items, part)["spec"]["tolerations"]
        assert own["key"] == "node-role.kubernetes.io/control-plane"
    assert container_of(items, "operator")["imagePullPolicy"] == "Never"
