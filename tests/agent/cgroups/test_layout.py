from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda_agent.cgroups.identity import ContainerIdentity, owner_from, start_ticks_from
from coda_agent.cgroups.layout import Driver, Quality, Version, find_layout, find_pod, list_containers, list_pods
from coda_agent.cgroups.threads import processes_of, threads_of
from coda_agent.host.files import Files
from coda_lab.emulators.cgroups import kubelet as emulated
from coda_lab.emulators.cgroups.kubelet import Setup
from tests.agent.cgroups.nodes import OTHER, SETUPS, UID, node

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_finds_every_pod_and_its_containers_under_any_driver_runtime_and_prefix(version: int, setup: Setup) -> None:
    n = node(version, setup)
    for index, quality in enumerate(emulated.Quality):
        n.kubelet.start(f"{UID[:-1]}{index}", quality, {"main": 2.0, "side": None})
    found = list_pods(n.files, n.layout)
    assert {uid: one.path for uid, one in found.items()} == {uid: one.path for uid, one in n.kubelet.pods.items()}
    assert {one.quality for one in found.values()} == set(Quality)
    for uid, one in found.items():
        made = n.kubelet.pods[uid].containers.values()
        assert {(c.id, c.path) for c in list_containers(n.files, n.layout, one.path)} == {(c.id, c.path) for c in made}
        assert find_pod(n.files, n.layout, uid) == one


@pytest.mark.parametrize(
    ("setup", "driver"), [(SETUPS["nested"], Driver.SYSTEMD), (SETUPS["deep-cgroupfs"], Driver.CGROUPFS)]
)
def test_names_the_driver_by_the_root_it_searched(setup: Setup, driver: Driver) -> None:
    layout = node(2, setup).layout
    assert (layout.version, layout.driver) == (Version.V2, driver)


def test_takes_v1_controllers_mounted_apart_together_or_linked(tmp_path: Path) -> None:
    for name in ("cpu,cpuacct", "memory"):
        (tmp_path / name / "kubepods").mkdir(parents=True)
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")
    layout = find_layout(Files(cgroup=tmp_path))
    assert layout is not None
    assert (layout.version, layout.cpu, layout.cpuacct) == (Version.V1, "cpu", "cpu,cpuacct")


@pytest.mark.parametrize("has_systemd", [True, False], ids=["to systemd", "to cgroupfs"])
def test_takes_the_root_that_has_pods_where_the_kubelet_has_changed_its_driver(has_systemd: bool) -> None:
    """Without a reboot the old root stays, and perhaps pods in it whose containers are gone."""
    n = node(2, Setup(has_systemd=not has_systemd))
    old = n.kubelet.start(OTHER, emulated.Quality.BURSTABLE, {"main": 2.0})
    for container in list(old.containers.values()):
        n.kubelet._end(container)
    kubelet = emulated.Kubelet(n.tree, Setup(has_systemd=has_systemd))
    pod = kubelet.start(UID, emulated.Quality.BURSTABLE, {"main": 2.0})
    assert n.layout.root == kubelet.root
    assert list_pods(n.files, n.layout)[UID].path == pod.path


def test_knows_no_layout_where_no_kubelet_works(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    (tmp_path / "system.slice").mkdir()
    assert find_layout(Files(cgroup=tmp_path)) is None


def test_a_pod_that_ended_is_none_and_one_that_cannot_be_told_is_an_error() -> None:
    n = node()
    n.kubelet.start(UID, emulated.Quality.BURSTABLE, {"main": 2.0})
    layout = n.layout
    n.kubelet.stop(UID)
    assert find_pod(n.files, layout, UID) is None
    assert list_pods(n.files, layout) == {}
    n.tree.switches.errors["readdir *"] = errno.EIO
    with pytest.raises(OSError, match="injected"):
        list_pods(n.files, layout)


@pytest.mark.parametrize("setup", [SETUPS["systemd"], SETUPS["crun"]], ids=["runc", "crun"])
def test_all_threads_are_found_at_whatever_depth_the_runtime_put_them(setup: Setup) -> None:
    n = node(2, setup)
    made = n.kubelet.start(UID, emulated.Quality.BURSTABLE, {"main": 2.0})
    n.kubelet.start(OTHER, emulated.Quality.BURSTABLE, {"main": 2.0})
    main = made.containers["main"].process
    cloned = n.tree.tasks.clone(main, 3)
    entered = n.kubelet.execute(UID, "main", threads=2)
    assert threads_of(n.files, n.layout, made.path) == {made.containers["POD"].process, main, *cloned, *entered}
    assert processes_of(n.files, n.layout, made.path) == {made.containers["POD"].process, main, entered[0]}


def test_threads_of_a_group_that_ends_while_it_is_read_are_those_read_so_far() -> None:
    n = node()
    made = n.kubelet.start(UID, emulated.Quality.BURSTABLE, {"main": 2.0})
    main = made.containers["main"]
    n.tree.switches.errors[f"read {main.path}/*"] = errno.ENODEV
    assert threads_of(n.files, n.layout, made.path) == {made.containers["POD"].process}


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
            f"cri-containerd-{HEX}.scope\n",
            ContainerIdentity(pod_uid=UID, container_id=HEX),
            id="v2, systemd",
        ),
        pytest.param(
            f"12:pids:/x\n4:cpu,cpuacct:/kubepods/besteffort/pod{UID}/{HEX}\n0::/\n",
            ContainerIdentity(pod_uid=UID, container_id=HEX),
            id="v1, cgroupfs",
        ),
        pytest.param(
            f"0::/../../kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID.replace('-', '_')}.slice/"
            f"crio-{HEX}.scope/container\n",
            ContainerIdentity(pod_uid=UID, container_id=HEX),
            id="private namespace, prefix, crun",
        ),
        pytest.param(
            f"0::/kubepods/pod{UID}/{HEX}/kubepods/pod{OTHER}/{HEX[::-1]}\n",
            ContainerIdentity(pod_uid=UID, container_id=HEX),
            id="a kubelet inside a pod: the outer pod",
        ),
        pytest.param(
            f"4:cpu,cpuacct:/system.slice/containerd.service/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
            f":cri-containerd:{HEX}\n",
            ContainerIdentity(pod_uid=UID, container_id=HEX),
            id="a runtime without systemd under a kubelet with it",
        ),
        pytest.param(f"0::/kubepods/pod{UID}\n", ContainerIdentity(pod_uid=UID), id="the pod itself"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-conmon-{HEX}.scope\n",
            ContainerIdentity(pod_uid=UID),
            id="a container's monitor is not in it",
        ),
        pytest.param(
            f"0::/kubepods/pod{HEX[:32]}/{HEX}\n",
            ContainerIdentity(pod_uid=HEX[:32], container_id=HEX),
            id="static pod",
        ),
        pytest.param(f"0::/system.slice/docker-{HEX}.scope\n", None, id="a container of no pod"),
        pytest.param("0::/user.slice/podman.slice\n", None, id="a name that only begins like a pod"),
        pytest.param("", None, id="empty"),
        pytest.param("garbage", None, id="garbage"),
    ],
)
def test_tells_pod_and_container_of_a_process(text: str, owner: ContainerIdentity | None) -> None:
    assert owner_from(text) == owner


@given(st.text())
def test_any_text_in_proc_is_read_or_refused_without_harm(text: str) -> None:
    owner_from(text)
    start = start_ticks_from(text)
    assert start is None or start >= 0


def test_a_process_began_when_its_stat_says_however_odd_its_name() -> None:
    n = node()
    process = n.kubelet.start(UID, emulated.Quality.BURSTABLE, {"main": 2.0}).containers["main"].process
    assert start_ticks_from(n.files.proc.read_text(f"{process}/stat")) == process * 10
