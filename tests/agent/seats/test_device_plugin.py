"""What a container gets with a seat, and what the kubelet is refused."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda_agent.seats import device_plugin_v1beta1_pb2 as wire
from coda_agent.seats.device_plugin import GpuAccess, JobFiles, Seat, allocation
from coda_agent.seats.grpc_server import Refused

FILES = JobFiles(framework=Path("/var/lib/coda/framework/abc"), socket=Path("/run/coda/agent.sock"))
SEATS = {
    seat.id: seat
    for seat in (
        Seat(id="GPU-1::0", gpu="GPU-1", is_well=True),
        Seat(id="GPU-1::1", gpu="GPU-1", is_well=True),
        Seat(id="GPU-2::0", gpu="GPU-2", is_well=True),
        Seat(id="GPU-3::0", gpu="GPU-3", is_well=False),
        Seat(id="place-0", gpu=None, is_well=True),
    )
}


def asked(*containers: list[str]) -> bytes:
    requests = [wire.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
    return bytes(wire.AllocateRequest(container_requests=requests).SerializeToString())


def given_to(ids: list[str], access: GpuAccess = GpuAccess.ENVVAR) -> wire.ContainerAllocateResponse:
    said = wire.AllocateResponse.FromString(allocation(asked(ids), SEATS, FILES, access))
    answer: wire.ContainerAllocateResponse = said.container_responses[0]
    return answer


def test_a_container_gets_the_library_the_python_half_and_the_sockets_folder_and_its_gpu() -> None:
    answer = given_to(["GPU-1::1"])
    assert dict(answer.envs) == {
        "LD_PRELOAD": "/run/coda/lib/libcodagpu.so",
        "CODA_LIBRARY": "/run/coda/lib/libcodagpu.so",
        "CODA_PYTHON": "/run/coda/python",
        "CODA_SOCKET": "/run/coda/agent/agent.sock",
        "CODA_SHARE": "50",
        "NVIDIA_VISIBLE_DEVICES": "GPU-1",
    }
    assert {(mount.host_path, mount.container_path, mount.read_only) for mount in answer.mounts} == {
        (f"/var/lib/coda/framework/abc/lib/{platform.machine()}", "/run/coda/lib", True),
        ("/var/lib/coda/framework/abc/python", "/run/coda/python", True),
        ("/run/coda", "/run/coda/agent", True),
    }


def test_the_gpu_is_named_as_the_node_has_it() -> None:
    by_mount = given_to(["GPU-1::0"], GpuAccess.VOLUME_MOUNTS)
    assert by_mount.envs["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    assert ("/dev/null", "/var/run/nvidia-container-devices/GPU-1") in {
        (mount.host_path, mount.container_path) for mount in by_mount.mounts
    }
    by_cdi = given_to(["GPU-1::0"], GpuAccess.CDI_CRI)
    assert [device.name for device in by_cdi.cdi_devices] == ["nvidia.com/gpu=GPU-1"]
    assert "NVIDIA_VISIBLE_DEVICES" not in by_cdi.envs


def test_who_has_a_whole_gpu_gets_the_files_and_no_other_gpu() -> None:
    answer = given_to(["place-0"])
    assert "CODA_SOCKET" in answer.envs
    assert "CODA_SHARE" not in answer.envs
    assert "NVIDIA_VISIBLE_DEVICES" not in answer.envs
    assert len(answer.mounts) == 3


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        pytest.param(asked(["GPU-1::9"]), "there is no seat 'GPU-1::9' here", id="a seat that does not exist"),
        pytest.param(asked(["GPU-3::0"]), "the GPU of seat GPU-3::0 is not well", id="a card that is lost"),
        pytest.param(asked(["GPU-1::0", "GPU-2::0"]), "seats on two GPUs", id="two GPUs"),
        pytest.param(asked([]), "asks for 0 seats", id="none"),
        pytest.param(asked(["GPU-1::0"], ["GPU-1::9"]), "no seat", id="the second container"),
        pytest.param(asked(["GPU-1::0"] * 65), "asks for 65 seats", id="very many"),
        pytest.param(asked(*[["GPU-1::0"]] * 65), "more than 64 containers", id="very many containers"),
        pytest.param(asked(["x" * 5000]), "there is no seat", id="a long name"),
        pytest.param(b"\xff\xff\xff", "this is no AllocateRequest", id="nonsense"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_short_sentence(request_: bytes, why: str) -> None:
    with pytest.raises(Refused) as refused:
        allocation(request_, SEATS, FILES, GpuAccess.ENVVAR)
    assert why in str(refused.value)
    assert len(str(refused.value)) < 160


def test_without_the_files_nobody_gets_a_seat() -> None:
    with pytest.raises(Refused, match="not on this node"):
        allocation(asked(["GPU-1::0"]), SEATS, None, GpuAccess.ENVVAR)


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(request_: bytes) -> None:
    try:
        allocation(request_, SEATS, FILES, GpuAccess.ENVVAR)
    except Refused:
        return
