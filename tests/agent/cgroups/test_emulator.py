"""The emulated rules of cgroup v1 are this kernel's; those of v2 are what its source says."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from functools import partial

import pytest

from coda_agent.host.files import Tree
from coda_lab.emulators.cgroups.kernel import Kernel
from coda_lab.emulators.cgroups.kubelet import Quality, Setup
from coda_lab.emulators.cgroups.tree import V1_DIRECTORY, CgroupTree
from coda_lab.emulators.resctrl.tasks import FakeTasks
from tests.agent.cgroups import real
from tests.agent.cgroups.nodes import UID, node
from tests.rigs import need

VALUES = ["-1", "-7", "0", "999", "1000", "5000", "50000", "100000", "200000", "400000", "1000000", "1000001"]
VALUES += ["", "abc", " 5000", "0x2710", "99999999999999999999", "1.5"]
FILES = ["cpu.cfs_quota_us", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.shares", "cpu.stat"]
FILES += ["cpu.nope"]
SHOWN = ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.shares")
TREE = ("", "/pod", "/pod/a", "/pod/b", "/pod/a/inner")


def outcome_of(step: Callable[[], object]) -> int:
    try:
        step()
    except OSError as error:
        return error.errno or 0
    return 0


@pytest.mark.parametrize("seed", range(4))
def test_v1_takes_and_refuses_what_this_kernel_does(seed: int) -> None:
    need(real.has_v1(), "cgroup v1 (root, cpu and cpuacct controllers)")
    rng = random.Random(seed)
    top = f"coda-test-{os.getpid()}-{seed}"
    tree = CgroupTree(Kernel(1), FakeTasks())
    for below in TREE:
        tree.mkdir(f"{V1_DIRECTORY}/{top}{below}")
    with real.groups(*(top + below for below in TREE)):
        for _ in range(400):
            path, text = f"{top}{rng.choice(TREE)}/{rng.choice(FILES)}", f"{rng.choice(VALUES)}\n"
            expected = outcome_of(partial(Tree(real.CPU).write, path, text))
            got = outcome_of(partial(tree.write, f"{V1_DIRECTORY}/{path}", text))
            assert (path, text, got) == (path, text, expected)
        for below in TREE:
            for name in SHOWN:
                path = f"{top}{below}/{name}"
                assert (path, tree.read(f"{V1_DIRECTORY}/{path}")) == (path, (real.CPU / path).read_text())


def test_v1_makes_and_removes_directories_as_this_kernel_does() -> None:
    need(real.has_v1(), "cgroup v1 (root, cpu and cpuacct controllers)")
    top = f"coda-test-{os.getpid()}-names"
    tree = CgroupTree(Kernel(1), FakeTasks())
    tree.mkdir(f"{V1_DIRECTORY}/{top}")

    def outcomes(path: str) -> tuple[list[int], list[int]]:
        there, here = real.CPU / path, f"{V1_DIRECTORY}/{path}"
        on_kernel = (there.mkdir, there.mkdir, there.rmdir, there.rmdir)
        emulated = (partial(step, here) for step in (tree.mkdir, tree.mkdir, tree.rmdir, tree.rmdir))
        return [outcome_of(step) for step in on_kernel], [outcome_of(step) for step in emulated]

    with real.groups(top):
        for path in (f"{top}/a", f"{top}/a\nb", f"{top}/a/b", f"{top}/cpu.stat", "cpu.stat"):
            there, here = outcomes(path)
            assert (path, here) == (path, there)


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("cpu.max", "999 100000", errno.EINVAL),
        ("cpu.max", "5000 999", errno.EINVAL),
        ("cpu.max", "5000 1000001", errno.EINVAL),
        ("cpu.max", "", errno.EINVAL),
        ("cpu.max", "much", errno.EINVAL),
        ("cpu.max", "1000", 0),
        ("cpu.max", "max 1000000", 0),
        ("cpu.weight", "0", errno.ERANGE),
        ("cpu.weight", "10001", errno.ERANGE),
        ("cpu.stat", "0", errno.EINVAL),
        ("cpu.nope", "0", errno.ENOENT),
    ],
)
def test_v2_takes_and_refuses_what_the_kernel_s_source_says(name: str, text: str, number: int) -> None:
    n = node(2)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 4.0})
    before = n.tree.read(f"{pod.path}/cpu.max")
    if number == 0:
        n.tree.write(f"{pod.path}/{name}", text)
        return
    with pytest.raises(OSError, match=r".") as refused:
        n.tree.write(f"{pod.path}/{name}", text)
    assert (refused.value.errno, n.tree.read(f"{pod.path}/cpu.max")) == (number, before)


def test_v2_keeps_the_period_when_only_a_quota_is_written() -> None:
    n = node(2)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 4.0})
    n.tree.write(f"{pod.path}/cpu.max", "30000 50000")
    n.tree.write(f"{pod.path}/cpu.max", "20000")
    assert n.tree.read(f"{pod.path}/cpu.max") == "20000 50000\n"


def test_v2_lets_a_child_exceed_its_parent_and_gives_it_the_smaller_one() -> None:
    n = node(2)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 4.0})
    n.tree.write(f"{pod.path}/cpu.max", "100000 100000")
    n.kubelet.demand(UID, "main", 4.0)
    n.tree.kernel.advance(1.0)
    assert n.tree.kernel.find(pod.containers["main"].path).served_cores == pytest.approx(1.0)


def test_v2_refuses_a_quota_below_the_burst_and_a_weight_while_idle() -> None:
    n = node(2)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 4.0})
    n.tree.write(f"{pod.path}/cpu.max.burst", "50000")
    n.tree.write(f"{pod.path}/cpu.idle", "1")
    for name, text in (("cpu.max", "40000"), ("cpu.weight", "100")):
        with pytest.raises(OSError, match="Errno 22"):
            n.tree.write(f"{pod.path}/{name}", text)


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_with_tasks_or_children_is_not_removed_and_a_foreign_name_is_not_found(version: int) -> None:
    n = node(version)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 4.0})
    stem = f"{V1_DIRECTORY}/" if version == 1 else ""
    for path, number in ((pod.path, errno.EBUSY), (pod.containers["main"].path, errno.EBUSY), ("x", errno.ENOENT)):
        with pytest.raises(OSError, match=r".") as refused:
            n.tree.rmdir(stem + path)
        assert refused.value.errno == number


def test_the_kubelet_s_minute_rewrites_the_classes_and_no_pod() -> None:
    n = node(2)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 4.0})
    before = n.tree.read(f"{pod.path}/cpu.max")
    written = len(n.tree.log)
    n.kubelet.rewrite_qualities()
    assert n.tree.read(f"{pod.path}/cpu.max") == before
    assert [line.split("/")[-1] for line in n.tree.log[written:]] == ["cpu.weight 1", "cpu.weight 1"]


def test_a_restarted_container_has_a_new_id_and_its_own_limit_again() -> None:
    n = node(2, Setup(has_subgroup=True))
    first = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 4.0}).containers["main"]
    n.tree.write(f"{first.path}/cpu.max", "100000")
    second = n.kubelet.restart(UID, "main")
    assert second.id != first.id
    assert n.limit(second.path) == 4.0


def test_v1_starts_no_container_above_its_pod() -> None:
    n = node(1)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 4.0})
    n.tree.write(f"{V1_DIRECTORY}/{pod.containers['main'].path}/cpu.cfs_quota_us", "100000")
    n.tree.write(f"{V1_DIRECTORY}/{pod.path}/cpu.cfs_quota_us", "100000")
    with pytest.raises(OSError, match="above its parent"):
        n.kubelet.restart(UID, "main")
