"""The pods that the API server says run, on an emulated machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coda_lab.emulators.cgroups.kubelet import Quality
from coda_lab.emulators.node import EmulatedNode, Work
from coda_lab.machines.pod_host import Host

Json = dict[str, Any]
Change = Callable[[Json], object]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(EmulatedNode(tmp_path, gpus=4, cores=16))


def pod(name: str = "a", *, cores: str | None = "4", gpus: int = 0, version: int = 1, **notes: str) -> Json:
    limits = ({"cpu": cores} if cores else {}) | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "annotations": {f"load.coda.scheduler/{key.replace('_', '-')}": text for key, text in notes.items()},
        },
        "spec": {"containers": [{"name": "train", "resources": {"limits": limits}}]},
        "status": {"phase": "Running", "qosClass": "Guaranteed"},
    }


def resized(item: Json, cores: str) -> Json:
    """As its kubelet reports it, while the spec may say anything."""
    status = {"name": "train", "resources": {"limits": {"cpu": cores}}}
    metadata = {**item["metadata"], "resourceVersion": str(int(item["metadata"]["resourceVersion"]) + 1)}
    return {**item, "metadata": metadata, "status": {**item["status"], "containerStatuses": [status]}}


def only(host: Host) -> Work:
    (work,) = host.machine.works.values()
    return work


def test_a_running_pod_is_on_the_machine_with_its_limit_and_its_gpus(host: Host) -> None:
    assert host.follow([pod(gpus=2)], {})
    work = only(host)
    assert (work.name, work.uid, work.quality, len(work.devices)) == ("a", "uid-a", Quality.GUARANTEED, 2)
    assert host.machine.limit_of(work) == 4
    assert not host.follow([pod(gpus=2)], {})


def test_a_resize_is_in_force_once_the_kubelet_says_so(host: Host) -> None:
    host.follow([pod(gpus=1)], {})
    wanted = pod(gpus=1, cores="7", version=2)
    host.follow([resized(wanted, "4")], {})
    assert host.machine.limit_of(only(host)) == 4
    host.follow([resized(resized(wanted, "4"), "7")], {})
    assert host.machine.limit_of(only(host)) == 7


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed", None])
def test_a_pod_that_does_not_run_is_not_there_and_leaves_its_gpus_to_others(host: Host, phase: str | None) -> None:
    host.follow([pod(gpus=4)], {})
    ended = pod(gpus=4)
    ended["status"]["phase"] = phase
    assert host.follow([ended] if phase else [], {})
    assert not host.machine.works
    host.follow([pod("b", gpus=4)], {})
    assert len(only(host).devices) == 4


def test_the_pod_of_a_job_waits_until_its_category_is_known(host: Host) -> None:
    owned = pod(gpus=1)
    owned["metadata"]["ownerReferences"] = [{"kind": "TrainingJob", "name": "job"}]
    assert not host.follow([owned], {})
    assert host.follow([owned], {"default/job": "NLP"})
    assert only(host).demand_cores == 6  # BAT's optimum


def test_a_changed_annotation_changes_what_a_running_pod_does(host: Host) -> None:
    host.follow([pod(gb_per_second="200", socket="1")], {})
    work = only(host)
    assert (work.bytes_per_s, work.domain) == (200e9, 1)
    host.follow([pod(version=2, gb_per_second="1")], {})
    assert (only(host), work.bytes_per_s, work.domain) == (work, 1e9, 0)


def test_a_misspelt_annotation_is_logged_and_the_usual_load_runs(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    host.follow([pod(gigabytes="200")], {})
    assert only(host).bytes_per_s == 0
    assert "default/a: annotation load.coda.scheduler/gigabytes is unknown" in caplog.text


def test_the_driver_reports_an_error_once_for_each_time_that_the_pod_asks_for_one(host: Host) -> None:
    def told() -> list[str]:
        lines = host.machine.state.path.read_text().splitlines()
        return [line.split()[4] for line in lines if line.startswith("event ")]

    host.follow([pod(gpus=1)], {})
    assert told() == []
    host.follow([pod(gpus=1, version=2, xid="79")], {})
    host.follow([pod(gpus=1, version=3, xid="79")], {})
    host.follow([pod(gpus=1, version=4, xid="79", noise="0.5")], {})
    assert told() == ["79"]
    host.follow([pod(gpus=1, version=5, xid="48"), pod("cpu", xid="48")], {})
    assert told() == ["79", "48"]
