"""The whole agent on a node whose driver does not come back: what is told of the GPUs that the node should have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from coda_agent.gpus import Health, LibraryState, Snapshot
from coda_agent.gpus.devices import Gpu, GpuReading
from coda_agent.gpus.known_gpus import PATIENCE_S, KnownGpus
from coda_agent.host import StateDir
from coda_lab.emulators.agent_rig import Rig
from tests.agent.loop.conftest import MakeRig

ABOVE = int(PATIENCE_S) + 2


def healthy(rig: Rig) -> Mapping[str, float]:
    """The samples of `coda_gpu_healthy` by UUID."""
    found = [metric for metric in rig.registry.collect() if metric.name == "coda_gpu_healthy"]
    return {sample.labels["UUID"]: sample.value for metric in found for sample in metric.samples}


async def test_a_restarted_agent_still_says_that_gpus_without_a_driver_are_not_measured(make_rig: MakeRig) -> None:
    rig = make_rig(tune="off")
    await rig.run(5)
    uuids = set(healthy(rig))
    assert uuids
    rig.node.state.unload_driver()
    rig.kill()
    rig.start()
    await rig.run(ABOVE)
    assert healthy(rig) == dict.fromkeys(uuids, 0.0)
    assert {(one["uuid"], one["health"]) for one in rig.api.profiles[-1]["status"]["gpus"]} <= {
        (uuid, "lost") for uuid in uuids
    }
    rig.node.state.reload_driver()
    await rig.run(70)
    assert healthy(rig) == dict.fromkeys(uuids, 1.0)


def gpu(number: int) -> Gpu:
    place = f"0000:{number:02x}:00.0"
    return Gpu(uuid=f"GPU-{number}", index=number, minor=number, name="H200", pci_bus_id=place, memory_bytes=1 << 37)


def snapshot(at_s: float, *numbers: int, library: LibraryState = LibraryState.READY) -> Snapshot:
    readings = tuple(GpuReading(gpu=gpu(number), health=Health.READY) for number in numbers)
    return Snapshot(at_s=at_s, library=library, why="no driver", readings=readings)


def told(found: Snapshot) -> dict[str, Health]:
    return {reading.gpu.uuid: reading.health for reading in found.readings}


def known(folder: Path, boot: str = "one", *, reads_only: bool = False) -> KnownGpus:
    return KnownGpus(StateDir(folder), boot=boot, reads_only=reads_only)


ABSENT = LibraryState.ABSENT
BOTH_LOST = {"GPU-0": Health.LOST, "GPU-1": Health.LOST}


@pytest.mark.parametrize("boot", ["one", "two"])
@pytest.mark.parametrize("library", [ABSENT, LibraryState.FAILED, LibraryState.OUTDATED, LibraryState.SILENT])
def test_known_gpus_are_lost_once_nvml_has_had_its_time(tmp_path: Path, boot: str, library: LibraryState) -> None:
    known(tmp_path).completed(snapshot(0, 0, 1))
    after = known(tmp_path, boot)
    assert told(after.completed(snapshot(1000, library=library))) == {}, "the driver may be loaded after the agent"
    found = after.completed(snapshot(1000 + PATIENCE_S, library=library))
    assert told(found) == BOTH_LOST
    assert found.readings[0].why == "this node has had GPU-0, but no driver"
    assert found.readings[0].gpu == gpu(0)
    assert told(known(tmp_path, boot).completed(snapshot(0, library=library))) == {}
    assert told(after.completed(snapshot(2000, 0, 1))) == {"GPU-0": Health.READY, "GPU-1": Health.READY}


def test_a_gpu_that_is_gone_since_this_start_of_the_machine_stays_lost(tmp_path: Path) -> None:
    known(tmp_path).completed(snapshot(0, 0, 1))
    for _ in range(2):
        found = known(tmp_path).completed(snapshot(0, 0))
        assert told(found) == {"GPU-0": Health.READY, "GPU-1": Health.LOST}


def test_a_machine_that_was_started_since_may_have_other_gpus(tmp_path: Path) -> None:
    known(tmp_path).completed(snapshot(0, 0, 1))
    assert told(known(tmp_path, "two").completed(snapshot(0, 0, 2))) == {"GPU-0": Health.READY, "GPU-2": Health.READY}
    assert told(known(tmp_path, "two").completed(snapshot(0, 0))) == {"GPU-0": Health.READY, "GPU-2": Health.LOST}


def test_a_node_without_gpus_stays_silent(tmp_path: Path) -> None:
    for at_s in (0, PATIENCE_S, 1e6):
        assert told(known(tmp_path).completed(snapshot(at_s, library=ABSENT))) == {}
    assert not (tmp_path / "gpus.json").exists()


def test_an_observer_keeps_nothing_and_garbage_is_nothing(tmp_path: Path) -> None:
    known(tmp_path, reads_only=True).completed(snapshot(0, 0))
    assert not (tmp_path / "gpus.json").exists()
    for garbage in (b"{", b"[]", b'{"boot": "one"}', b'{"boot": "one", "gpus": [{"uuid": 1}]}', b"\xff"):
        (tmp_path / "gpus.json").write_bytes(garbage)
        after = known(tmp_path)
        after.completed(snapshot(0, library=ABSENT))
        assert told(after.completed(snapshot(PATIENCE_S, library=ABSENT))) == {}
