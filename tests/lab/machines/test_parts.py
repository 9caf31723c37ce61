"""Agents on emulated machines, as parts of a local cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from coda.errors import InvalidInput
from coda_agent.settings import Settings
from coda_lab.emulators.node import EmulatedNode
from coda_lab.local.machine_commands import agent_environ
from coda_lab.local.parts import Part, coda_parts
from coda_lab.spec import ClusterSpec, Layout, identity_of


def parts_of(spec: ClusterSpec, folder: Path) -> dict[str, Part]:
    ports = {name: 1000 + number for number, name in enumerate(spec.port_names)}
    return {part.name: part for part in coda_parts(spec, Layout(folder=folder), ports)}


def test_agents_come_after_everything_they_need_and_share_an_identity(tmp_path: Path) -> None:
    spec = ClusterSpec(nodes="3x8x48", racks=1, agents=2)
    assert spec.names[-3:] == ("machines", "agent-0", "agent-1")
    assert {identity_of(name) for name in spec.names[-2:]} == {"agent"}
    parts = parts_of(spec, tmp_path)
    assert [parts[f"agent-{number}"].environ["CODA_NODE_NAME"] for number in (0, 1)] == ["node-0000", "node-0001"]
    assert not {"machines", "agent-0"} & set(ClusterSpec(nodes="3x8x48").names)


def test_the_agents_settings_are_ones_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ClusterSpec(nodes="3x8x48", racks=1, agents=2, agent_window_s=12.0)
    for name, text in agent_environ(1, spec, Layout(folder=tmp_path)).items():
        monkeypatch.setenv(name, text)
    settings = Settings()
    assert (settings.window_s, settings.contention_window_s) == (12, 0.4)
    assert settings.peak_gb_per_s == {0: 160, 1: 160}
    samples = settings.window_s / 2 / settings.contention_window_s
    assert samples >= 1.4 * settings.tuning_config().tuning.least_samples


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (ClusterSpec(nodes="2x8x48", agents=3), "--agents 3: there are 2 simulated nodes"),
        (ClusterSpec(nodes="", agents=1), "--agents 1: there are 0 simulated nodes"),
        (ClusterSpec(nodes="40x8x48", agents=17), "16 agents at most"),
        (ClusterSpec(agents=-1), "--agents -1"),
        (ClusterSpec(agents=1, agent_window_s=0.5), "--window 0.5"),
        (ClusterSpec(agents=1, agent_window_s=float("nan")), "--window nan"),
    ],
)
def test_what_cannot_be_started_is_one_sentence(spec: ClusterSpec, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        spec.check()


def test_a_machine_has_its_nodes_cores_and_gpus(tmp_path: Path) -> None:
    machine = EmulatedNode(tmp_path, gpus=3, first_gpu=20, cores=28)
    by_socket: dict[str, list[int]] = {}
    for cpu in (tmp_path / "sys/devices/system/cpu").iterdir():
        socket = (cpu / "cache/index3/id").read_text().strip()
        by_socket.setdefault(socket, []).append(int(cpu.name.removeprefix("cpu")))
    assert {socket: sorted(cpus) for socket, cpus in by_socket.items()} == {
        "0": list(range(14)),
        "1": list(range(14, 28)),
    }
    assert [device.uuid[:12] for device in machine.state.devices] == ["GPU-00000020", "GPU-00000021", "GPU-00000022"]


def test_live_time_flows_as_it_is_told(tmp_path: Path) -> None:
    machine = EmulatedNode(tmp_path, is_live=True)
    work = machine.start("a", cores=2, demand_cores=8, gb_per_s=40)
    group = machine.kubelet.pods[work.uid].path
    machine.flow(0.5)
    machine.flow(0.25)
    used_us = int(machine.files.cgroup.read_text(f"{group}/cpu.stat").split()[1])
    assert used_us == pytest.approx(2 * 0.75e6)
    counted = int(machine.files.resctrl.read_text("mon_data/mon_L3_00/mbm_total_bytes"))
    assert counted == pytest.approx(0.75 * 40e9 * 2 / 8)
