"""Why a container did not start, by what its kubelet says: the node, or the pod itself."""

from __future__ import annotations

import pytest

from coda.diagnosis import Diagnosis, End, Retry, classify
from coda.diagnosis.trial_verdict import would_fail_the_gang

TASK = "failed to create containerd task: failed to create shim task: "
RUNC = f"{TASK}OCI runtime create failed: runc create failed: "
INIT = f"{RUNC}unable to start container process: error during container init: "
OF_THE_NODE = [
    f"{TASK}context deadline exceeded: unknown",
    f"{TASK}mkdir /run/containerd/io.containerd.runtime.v2.task/k8s.io/ab12: no space left on device: unknown",
    f"{RUNC}unable to start container process: unable to start init: fork/exec /proc/self/exe: resource temporarily "
    "unavailable: unknown",
    f"{RUNC}unable to apply cgroup configuration: failed to write 4242: open /sys/fs/cgroup/kubepods.slice/"
    "cgroup.procs: no such file or directory: unknown",
    f'{RUNC}unable to apply cgroup configuration: unable to start unit "cri-containerd-ab.scope": Message recipient '
    "disconnected from message bus without replying: unknown",
    f"{TASK}transport is closing: unavailable",
    f"{TASK}ttrpc: closed: unknown",
    f"{TASK}failed to mount rootfs component: stale NFS file handle: unknown",
    'failed to start containerd task "ab": cannot start a stopped process: unknown',
]
OF_THE_POD = [
    f'{INIT}exec: "torchrunn": executable file not found in $PATH: unknown',
    f'{INIT}exec: "./train.sh": permission denied: unknown',
    f'{INIT}exec: "/w/run.sh": stat /w/run.sh: no such file or directory: unknown',
    f"{INIT}exec /w/run.sh: exec format error",
    f'{INIT}chdir to cwd ("/w") set in config.json failed: permission denied: unknown',
]
UNCLEAR = [f"{RUNC}something that nobody has met: unknown", ""]


def diagnosed(message: str) -> Diagnosis:
    return classify([], [End(exit_code=128, said=("StartError", message), rank=0)])


@pytest.mark.parametrize("message", OF_THE_NODE)
def test_what_the_node_could_not_start_is_tried_on_another(message: str) -> None:
    found = diagnosed(message)
    assert (found.retry, found.evidence[:20]) == (Retry.OTHER_NODE, message[:20]), found.rule
    assert not would_fail_the_gang(found)


@pytest.mark.parametrize("message", ["context deadline exceeded", 'name "main_j" is reserved for "ab12"'])
def test_a_container_that_the_node_could_not_create_is_tried_on_another(message: str) -> None:
    found = classify([], [End(said=("CreateContainerError", f"failed: {message}"), rank=0)])
    assert found.retry is Retry.OTHER_NODE, found.rule


@pytest.mark.parametrize("message", OF_THE_POD)
def test_a_command_that_no_node_can_start_ends_the_job(message: str) -> None:
    found = diagnosed(message)
    assert (found.retry, found.explicit, found.evidence[:20]) == (Retry.NO, True, message[:20]), found.rule


@pytest.mark.parametrize("message", UNCLEAR)
def test_what_is_not_known_is_tried_once_more_and_named(message: str) -> None:
    found = diagnosed(message)
    assert (found.retry, found.evidence[:20]) == (Retry.ONCE, message[:20] or "StartError"), found.rule
