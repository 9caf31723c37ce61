"""The kubelet's socket: right answers, wrong answers, and what is believed while it is silent."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.errors import Outage
from coda_agent.claimed_device import ClaimedDevice
from coda_agent.gpus import pod_resources_v1_pb2 as wire
from coda_agent.gpus.allocations import Grant
from coda_agent.gpus.pod_resources import PodResources, ask_kubelet, grants_from
from coda_lab.emulators.pod_resources import ContainerDevices, PodResourcesServer

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 300.0  # a busy machine may answer late; how long it takes is not asked here
TRAIN = ContainerDevices(
    namespace="vision", pod="resnet-0-0", devices=(("nvidia.com/gpu", "GPU-1"), ("nvidia.com/gpu", "GPU-2"))
)
TRAIN_GRANT = Grant(
    namespace="vision",
    pod="resnet-0-0",
    container="main",
    device_ids=(("nvidia.com/gpu", "GPU-1"), ("nvidia.com/gpu", "GPU-2")),
)


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[PodResourcesServer]:
    with PodResourcesServer(tmp_path / "kubelet.sock") as server:
        yield server


def test_each_container_has_its_devices_whatever_their_order(kubelet: PodResourcesServer) -> None:
    kubelet.give([TRAIN])
    assert {ask_kubelet(kubelet.socket, PATIENCE_S) for _ in range(5)} == {(TRAIN_GRANT,)}


def test_claims_and_exclusive_cpus_are_read(kubelet: PodResourcesServer) -> None:
    kubelet.give(
        [ContainerDevices(namespace="a", pod="b", claims=(("gpu.nvidia.com", "n1", "gpu-0"),), exclusive_cpus=(2, 3))]
    )
    (grant,) = ask_kubelet(kubelet.socket, PATIENCE_S)
    assert grant.claimed == (ClaimedDevice(driver="gpu.nvidia.com", pool="n1", device="gpu-0"),)
    assert grant.exclusive_cpus == {2, 3}


def test_an_answer_is_kept_until_it_is_old(kubelet: PodResourcesServer) -> None:
    resources = PodResources(kubelet.socket, answer_s=PATIENCE_S, keep_s=10)
    assert resources.listing(100).grants == ()
    kubelet.give([TRAIN])
    assert resources.listing(109).grants == ()
    assert resources.listing(110).grants == (TRAIN_GRANT,)
    assert resources.listing(111).at_s == 110


def test_a_pod_that_is_new_asks_again_at_once(kubelet: PodResourcesServer) -> None:
    resources = PodResources(kubelet.socket, answer_s=PATIENCE_S, keep_s=10, pause_s=1)
    assert resources.listing(100, frozenset({"old"})).at_s == 100
    kubelet.give([TRAIN])
    assert resources.listing(100.5, frozenset({"old", "new"})).grants == ()
    assert resources.listing(101, frozenset({"old", "new"})).grants == (TRAIN_GRANT,)
    assert resources.listing(105, frozenset({"new"})).at_s == 101


def test_a_pod_that_is_new_is_asked_about_again_if_there_was_no_answer(kubelet: PodResourcesServer) -> None:
    """Else a pod with exclusive cores could be throttled until the old answer is too old."""
    resources = PodResources(kubelet.socket, answer_s=PATIENCE_S, keep_s=10, pause_s=1)
    assert resources.listing(100, frozenset({"old"})).at_s == 100
    kubelet.give([TRAIN])
    kubelet.refuse(grpc.StatusCode.UNAVAILABLE)
    assert resources.listing(101, frozenset({"old", "new"})).at_s == 100
    kubelet.refuse(None)
    assert resources.listing(102, frozenset({"old", "new"})).grants == (TRAIN_GRANT,)


def test_the_kubelet_is_never_asked_twice_within_the_pause(kubelet: PodResourcesServer) -> None:
    resources = PodResources(kubelet.socket, answer_s=PATIENCE_S, keep_s=0, pause_s=1)
    resources.listing(100)
    kubelet.give([TRAIN])
    assert resources.listing(100.5).grants == ()
    assert resources.listing(101).grants == (TRAIN_GRANT,)


def test_a_restarted_kubelet_is_found_on_its_new_socket(kubelet: PodResourcesServer) -> None:
    resources = PodResources(kubelet.socket, answer_s=PATIENCE_S)
    resources.listing(100)
    kubelet.restart()
    kubelet.give([TRAIN])
    assert resources.listing(110).grants == (TRAIN_GRANT,)


def test_while_the_kubelet_is_down_the_old_answer_stays_with_its_time(kubelet: PodResourcesServer) -> None:
    kubelet.give([TRAIN])
    resources = PodResources(kubelet.socket, answer_s=PATIENCE_S)
    resources.listing(100)
    kubelet.stop()
    silent = resources.listing(110)
    assert (silent.at_s, silent.grants) == (100, (TRAIN_GRANT,))
    assert silent.why is not None
    assert "UNAVAILABLE" in silent.why
    kubelet.start()
    back = resources.listing(111)
    assert (back.at_s, back.why) == (111, None)


def test_a_socket_that_was_never_there_is_an_outage(tmp_path: Path) -> None:
    with pytest.raises(Outage, match=r"kubelet.sock gave no list of devices: UNAVAILABLE"):
        ask_kubelet(tmp_path / "kubelet.sock", PATIENCE_S)
    assert PodResources(tmp_path / "kubelet.sock", answer_s=PATIENCE_S).listing(5).at_s is None


def test_a_file_in_the_sockets_place_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "kubelet.sock").write_text("not a socket")
    with pytest.raises(Outage):
        ask_kubelet(tmp_path / "kubelet.sock", PATIENCE_S)


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL], ids=str)
def test_a_refusal_is_an_outage_with_its_code(kubelet: PodResourcesServer, code: grpc.StatusCode) -> None:
    kubelet.refuse(code)
    with pytest.raises(Outage, match=f"{code.name}: told to refuse"):
        ask_kubelet(kubelet.socket, PATIENCE_S)


def test_a_kubelet_that_hangs_is_left_after_the_timeout(kubelet: PodResourcesServer) -> None:
    kubelet.hang(True)
    with pytest.raises(Outage, match="DEADLINE_EXCEEDED"):
        ask_kubelet(kubelet.socket, 0.2)


def test_a_kubelet_that_hangs_delays_no_round(tmp_path: Path) -> None:
    """Its late answer serves a later round, and no second question is asked meanwhile."""
    answers, asked = queue.SimpleQueue[tuple[Grant, ...]](), []

    def ask(_socket: Path, _timeout_s: float) -> tuple[Grant, ...]:
        asked.append(1)
        return answers.get()

    resources = PodResources(tmp_path, answer_s=0.0, ask=ask)
    assert [resources.listing(100 + second).at_s for second in range(30)] == [None] * 30
    answers.put((TRAIN_GRANT,))
    while (late := resources.listing(130)).at_s is None:
        pass
    assert (late.grants, len(asked)) == ((TRAIN_GRANT,), 1)


def test_an_answer_larger_than_any_kubelets_is_refused(kubelet: PodResourcesServer) -> None:
    kubelet.answer_with(b"\x0a\x80\x80\x80\x09" + bytes(18 << 20))
    with pytest.raises(Outage, match="RESOURCE_EXHAUSTED"):
        ask_kubelet(kubelet.socket, PATIENCE_S)


def test_an_answer_of_many_pods_is_read(kubelet: PodResourcesServer) -> None:
    kubelet.give(ContainerDevices(namespace="a", pod=f"p{number}", devices=TRAIN.devices) for number in range(3000))
    assert len(ask_kubelet(kubelet.socket, PATIENCE_S)) == 3000


@given(answer=st.binary(max_size=200))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_answer_crashes_the_client(kubelet: PodResourcesServer, answer: bytes) -> None:
    kubelet.answer_with(answer)
    try:
        grants = ask_kubelet(kubelet.socket, PATIENCE_S)
    except Outage:
        return
    assert all(grant.pod and grant.namespace for grant in grants)


def damaged(text: bytes, cuts: list[tuple[int, int]]) -> bytes:
    for place, byte in cuts:
        text = text[: place % len(text)] + bytes([byte]) + text[place % len(text) + 1 :]
    return text


@given(cuts=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), max_size=8), end=st.integers(0, 1000))
@settings(max_examples=400)
def test_a_damaged_answer_is_an_error_of_the_wire_or_is_read(cuts: list[tuple[int, int]], end: int) -> None:
    honest = wire.ListPodResourcesResponse(
        pod_resources=[
            wire.PodResources(
                name="p",
                namespace="n",
                containers=[
                    wire.ContainerResources(
                        name="main",
                        devices=[wire.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-1", "GPU-2"])],
                        cpu_ids=[1, 2, 3],
                        dynamic_resources=[wire.DynamicResource(claim_resources=[wire.ClaimResource(driver_name="d")])],
                    )
                ],
            )
        ]
    ).SerializeToString()
    try:
        answer = wire.ListPodResourcesResponse.FromString(damaged(honest, cuts)[: max(1, end)])
    except DecodeError:  # which the client turns into an outage
        return
    assert all(grant.pod and grant.namespace for grant in grants_from(answer))


def test_nameless_pods_and_impossible_cpus_are_left_out() -> None:
    container = wire.ContainerResources(name="main", cpu_ids=[-1, 4, 1 << 40])
    answer = wire.ListPodResourcesResponse(
        pod_resources=[
            wire.PodResources(name="", namespace="n", containers=[container]),
            wire.PodResources(name="p", namespace="n", containers=[container]),
        ]
    )
    assert grants_from(answer) == (Grant(namespace="n", pod="p", container="main", exclusive_cpus=frozenset({4})),)


def test_the_committed_stubs_are_those_of_the_proto_file(tmp_path: Path) -> None:
    out = [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "node_agent"), *out]
    subprocess.run([*command, "coda_agent/gpus/pod_resources_v1.proto"], check=True)
    fresh = sorted((tmp_path / "coda_agent" / "gpus").iterdir())
    assert len(fresh) == 2
    for path in fresh:
        assert path.read_text() == (ROOT / "node_agent" / "coda_agent" / "gpus" / path.name).read_text(), path.name
