"""What a local cluster is made of, before anything is started."""

from __future__ import annotations

import errno
import json
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coda.errors import InvalidInput
from coda_lab.host.errors import LabFailure, failure_from_os_error
from coda_lab.host.paths import Settings, crds, kube_module, manifests
from coda_lab.host.ports import LOOPBACK, check_free, free_ports
from coda_lab.install import objects_in
from coda_lab.local.named_clusters import folder_of
from coda_lab.local.parts import coda_parts, control_plane, foreign_scheduler_config, scheduler_config
from coda_lab.local.supervisor import SPEC
from coda_lab.spec import ClusterSpec, Layout, identity_of


@pytest.mark.parametrize(
    ("spec", "option"),
    [
        pytest.param(ClusterSpec(nodes="8x8"), "--nodes", id="a shape that is none"),
        pytest.param(ClusterSpec(nodes="6000x8x48"), "--nodes 6000x8x48", id="too many"),
        pytest.param(ClusterSpec(nodes="2x8x48", racks=3), "--racks 3", id="more racks than nodes"),
    ],
)
def test_impossible_nodes_are_refused_by_the_name_of_the_option(spec: ClusterSpec, option: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{option}"):
        _ = spec.node_count


@pytest.mark.parametrize("name", ["", "A", "a/b", "..", "-a", "a" * 41])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^--name "):
        folder_of(name, Settings.from_environ({}))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({"CODA_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x"}, Path("/c"), id="our own variable first"),
        pytest.param({"XDG_CACHE_HOME": "/x"}, Path("/x/coda"), id="then XDG's"),
        pytest.param({"CODA_CACHE_DIR": ""}, Path.home() / ".cache/coda", id="then the home folder"),
    ],
)
def test_the_cache_is_where_the_user_wants_it(environ: dict[str, str], expected: Path) -> None:
    assert Settings.from_environ(environ).cache == expected


def ports_for(spec: ClusterSpec) -> dict[str, int]:
    return {name: number for number, name in enumerate(spec.port_names, 20_000)}


def flags_of(spec: ClusterSpec, name: str) -> tuple[str, ...]:
    programs = {part: (part,) for part in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")}
    parts = control_plane(spec, Layout(folder=Path("/f")), programs, ports_for(spec))
    return next(part.argv for part in parts if part.name == name)


@pytest.mark.parametrize(
    ("nodes", "grace"), [pytest.param("100x8x48", "20s", id="real timings"), pytest.param("101x8x48", "10m", id="slow")]
)
def test_above_a_hundred_nodes_heartbeats_are_slow(nodes: str, grace: str) -> None:
    assert f"--node-monitor-grace-period={grace}" in flags_of(ClusterSpec(nodes=nodes), "kube-controller-manager")


def test_everything_listens_on_loopback_only() -> None:
    for part in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        assert f"--bind-address={LOOPBACK}" in flags_of(ClusterSpec(), part)
    urls = [flag for flag in flags_of(ClusterSpec(), "etcd") if "-urls=" in flag]
    assert len(urls) == 4
    assert all(f"=http://{LOOPBACK}:" in url for url in urls)


def test_each_replica_gets_its_own_identity_and_port() -> None:
    spec = ClusterSpec(operators=2)
    ports = ports_for(spec)
    environ_by_part = {part.name: part.environ for part in coda_parts(spec, Layout(folder=Path("/f")), ports)}
    assert environ_by_part["extender-1"] == {
        "CODA_KUBECONFIG": "/f/credentials/extender.yaml",
        "CODA_IDENTITY": "coda-extender-1",
        "CODA_HOST": LOOPBACK,
        "CODA_PORT": str(ports["extender-1"]),
        "CODA_METRICS_PORT": str(ports["extender-1-metrics"]),
        "CODA_TLS_DIR": "/f/tls/extender",
        "CODA_POD_NAMESPACE": "coda-system",
        "CODA_POD_NAME": "coda-extender-1",
        "CODA_SCHEDULER_NAMES": "default-scheduler,coda",
    }
    assert environ_by_part["operator-1"]["CODA_IDENTITY"] == "coda-operator-1"
    assert environ_by_part["operator-0"]["CODA_METRICS_PORT"] != environ_by_part["operator-1"]["CODA_METRICS_PORT"]


def test_the_scheduler_asks_the_extender_through_the_forwarder() -> None:
    config = json.loads(scheduler_config(ClusterSpec(), Layout(folder=Path("/f")), 1234))
    (extender,) = config["extenders"]
    assert extender["urlPrefix"] == f"https://{LOOPBACK}:1234"
    assert extender["enableHTTPS"]
    assert extender["tlsConfig"]["certFile"] == "/f/tls/kube-scheduler/tls.crt"
    assert not extender["ignorable"]
    by_name = {profile["schedulerName"]: profile.get("plugins") for profile in config["profiles"]}
    assert by_name == {"default-scheduler": None, "coda": {"postFilter": {"disabled": [{"name": "DefaultPreemption"}]}}}


def test_a_foreign_scheduler_has_the_default_profile_for_itself_and_nobody_to_ask() -> None:
    spec, layout = ClusterSpec(foreign_scheduler=True), Layout(folder=Path("/f"))
    own, foreign = json.loads(scheduler_config(spec, layout, 1234)), json.loads(foreign_scheduler_config(layout))
    assert [profile["schedulerName"] for profile in own["profiles"]] == ["coda"]
    assert foreign["profiles"] == [{"schedulerName": "default-scheduler"}]
    assert "extenders" not in foreign
    assert identity_of("foreign-scheduler") == "kube-scheduler"
    argv = flags_of(spec, "foreign-scheduler")
    assert argv[:2] == ("kube-scheduler", "--config=/f/foreign-scheduler.json")
    environ_by_part = {part.name: part.environ for part in coda_parts(spec, layout, ports_for(spec))}
    assert environ_by_part["extender-0"]["CODA_SCHEDULER_NAMES"] == "coda"


def test_a_plain_control_plane_has_no_extender_and_no_part_of_coda() -> None:
    spec = ClusterSpec(coda=False, nodes="")
    assert "extenders" not in json.loads(scheduler_config(spec, Layout(folder=Path("/f")), 1234))
    assert spec.names == ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def test_a_spec_survives_its_way_to_the_supervisor() -> None:
    spec = ClusterSpec(nodes="4x4x28", stopped=frozenset({"extender-1"}), environ_by_part={"operator-0": {"A": "b"}})
    assert SPEC.validate_json(SPEC.dump_json(spec)) == spec


def test_free_ports_differ_and_are_out_of_reach_of_outgoing_connections() -> None:
    ports = free_ports(50, random.Random(1))
    assert len(set(ports)) == 50
    assert max(ports) < 32_768


def test_a_chosen_port_is_given_to_nobody_else_while_its_part_is_down() -> None:
    first = free_ports(1, random.Random(5))[0]
    assert free_ports(1, random.Random(5))[0] != first
    assert chosen_by_another_process(seed=5) != first


def test_a_port_is_free_again_when_the_process_that_chose_it_has_ended() -> None:
    assert chosen_by_another_process(seed=6) == chosen_by_another_process(seed=6)


def test_a_port_in_use_is_named_and_never_chosen() -> None:
    first = chosen_by_another_process(seed=7)
    with socket.create_server((LOOPBACK, first)):
        with pytest.raises(LabFailure, match=f"^Port {first} on {LOOPBACK} cannot be used"):
            check_free(first)
        assert free_ports(1, random.Random(7))[0] != first
    check_free(first)


def chosen_by_another_process(*, seed: int) -> int:
    choose = f"import random; from coda_lab.host.ports import free_ports; print(*free_ports(1, random.Random({seed})))"
    return int(subprocess.run([sys.executable, "-c", choose], capture_output=True, check=True).stdout)


def test_a_full_disk_is_one_sentence() -> None:
    failure = failure_from_os_error(OSError(errno.ENOSPC, "No space left on device", "/x"), "starting it")
    assert str(failure).startswith("The disk is full: starting it.")


def test_other_refusals_name_the_file() -> None:
    failure = failure_from_os_error(PermissionError(errno.EACCES, "Permission denied", "/x"), "starting it")
    assert str(failure) == "starting it failed: /x: Permission denied."


def test_what_is_shipped_is_found_and_can_be_read() -> None:
    kinds = [
        "arrayquotas.coda.scheduler",
        "nodeprofiles.coda.scheduler",
        "trainingjobs.coda.scheduler",
        "virtualclusters.coda.scheduler",
    ]
    assert [item["metadata"]["name"] for item in objects_in(crds())] == kinds
    roles = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"}
    policies = {f"{verb}AdmissionPolicy{part}" for verb in ("Mutating", "Validating") for part in ("", "Binding")}
    assert {"Namespace", "FlowSchema"} | roles | policies == {item["kind"] for item in objects_in(manifests())}
    assert (kube_module() / "main.go").exists()


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: [")
    with pytest.raises(InvalidInput, match=r"a\.yaml is no YAML"):
        objects_in(tmp_path)
