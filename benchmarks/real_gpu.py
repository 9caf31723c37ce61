"""On a machine with an NVIDIA GPU: the agent's utilisation against `nvidia-smi`, for known duty cycles.

The agent's own code senses once per second while another process keeps the GPU busy 25, 50, 75 and 100 % of the time;
`nvidia-smi` is asked twice per second over the same seconds. Exit code 0: all differ by 3 points at most, or there
is no GPU (said in one line); 1: not. Usage: python benchmarks/real_gpu.py [SECONDS PER CYCLE, default 20] > real.json
It needs the packages `coda`, `coda_agent` and nvidia-ml-py, and the files beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from coda_agent.gpus.devices import GpuReading, Health
from coda_agent.gpus.driver.gpus import Gpus
from coda_agent.gpus.driver.links import find_links
from coda_agent.gpus.samples import Moment
from pcie_traffic import PcieMeter

SHARES = (0.25, 0.5, 0.75, 1.0)
MOST_POINTS = 3.0
IDLE_SHARE = 0.02  # above it somebody else uses the GPU
WARM_UP_S = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One duty cycle; percent."""

    duty: float
    agent: float
    nvidia_smi: float
    agent_samples: int
    nvidia_smi_samples: int

    @property
    def points(self) -> float:
        """Between the two."""
        return abs(self.agent - self.nvidia_smi)


def now() -> Moment:
    wall_s = time.time()
    return Moment(monotonic_s=time.monotonic(), wall_s=wall_s, node_wall_s=wall_s)


def main() -> int:
    """See the module."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    gpus = Gpus()
    chosen, why_not = choose(gpus)
    if chosen is None:
        print(f"No measurement: {why_not}", file=sys.stderr)
        return 0
    rows = [compare(gpus, chosen, share, seconds) for share in SHARES]
    print(json.dumps({**description(gpus, chosen), "rows": [asdict(row) for row in rows]}, indent=2))
    for row in rows:
        verdict = "ok" if row.points <= MOST_POINTS else f"MORE THAN {MOST_POINTS:g} POINTS"
        figures = f"agent {row.agent:5.1f} %  nvidia-smi {row.nvidia_smi:5.1f} %  apart {row.points:.1f}"
        print(f"duty {row.duty:5.1f} %  {figures}  {verdict}", file=sys.stderr)
    return 0 if all(row.points <= MOST_POINTS for row in rows) else 1


def choose(gpus: Gpus) -> tuple[GpuReading | None, str]:
    """A GPU whose utilisation can be measured, and that is idle; else why there is none."""
    if shutil.which("nvidia-smi") is None:
        return None, "this machine has no nvidia-smi, so no NVIDIA GPU"
    gpus.sense(now())
    time.sleep(WARM_UP_S + 2)
    snapshot = gpus.sense(now())
    measured = [
        reading for reading in snapshot.readings if reading.health is Health.READY and reading.share is not None
    ]
    idle = next((reading for reading in measured if (reading.share or 0.0) <= IDLE_SHARE), None)
    if idle is None:
        why = snapshot.why or "; ".join(reading.why or "" for reading in snapshot.readings)
        return None, f"{len(snapshot.readings)} GPUs, none of them idle and measurable {why}".strip()
    return idle, ""


def compare(gpus: Gpus, chosen: GpuReading, share: float, seconds: int) -> Compared:
    """One duty cycle, seen by both."""
    uuid = chosen.gpu.uuid
    with load(chosen.gpu.pci_bus_id, share, WARM_UP_S + seconds + 5):
        time.sleep(WARM_UP_S)
        gpus.sense(now())  # what was sampled before does not count
        started_s = time.monotonic()
        with asked_nvidia_smi(uuid) as theirs:
            readings = []
            for second in range(1, seconds + 1):
                time.sleep(max(0.0, started_s + second - time.monotonic()))
                readings += [reading for reading in gpus.sense(now()).readings if reading.gpu.uuid == uuid]
    ours = [sample.share * 100 for reading in readings for sample in reading.samples]
    if not ours or not theirs:
        sys.exit(f"real_gpu: {len(ours)} samples of the agent and {len(theirs)} of nvidia-smi: nothing to compare")
    return Compared(
        duty=share * 100,
        agent=sum(ours) / len(ours),
        nvidia_smi=sum(theirs) / len(theirs),
        agent_samples=len(ours),
        nvidia_smi_samples=len(theirs),
    )


@contextmanager
def load(pci_bus_id: str, share: float, seconds: float) -> Iterator[int]:
    """The GPU busy `share` of the time; the load's pid."""
    script = Path(__file__).with_name("duty_cycle.py")
    command = [sys.executable, str(script), pci_bus_id, str(share), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "running\n":
                sys.exit("real_gpu: the load did not start; its reason is above")
            yield process.pid
        finally:
            process.terminate()


@contextmanager
def asked_nvidia_smi(uuid: str) -> Iterator[list[float]]:
    """Its percentages, twice per second, filled in while the block runs."""
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", uuid]
    found: list[float] = []
    done = threading.Event()

    def ask() -> None:
        while not done.wait(0.5):
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            found.extend(percents(answer.stdout.splitlines()))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield found
    finally:
        done.set()
        asking.join()


def percents(lines: Iterable[str]) -> list[float]:
    """The numbers among what nvidia-smi printed: `[N/A]` and its complaints are none."""
    return [float(line) for line in lines if line.strip().isdigit()]


def description(gpus: Gpus, chosen: GpuReading) -> dict[str, object]:
    """What this driver offers the agent."""
    snapshot = gpus.sense(now())
    traffic = PcieMeter()
    traffic.measure(gpus.open_devices(), time.monotonic())
    time.sleep(1)
    measured = traffic.measure(gpus.open_devices(), time.monotonic())
    return {
        "driver": snapshot.driver,
        "gpus": [
            {
                "name": reading.gpu.name,
                "pci": reading.gpu.pci_bus_id,
                "mig": reading.gpu.mig,
                "cpus": len(reading.gpu.cpus),
                "numa": sorted(reading.gpu.numa_nodes),
                "health": reading.health.value,
                "unmeasured": sorted(metric.value for metric in reading.unmeasured),
                "processes": None if reading.processes is None else len(reading.processes),
                "traffic": asdict(measured[reading.gpu.uuid]) if reading.gpu.uuid in measured else None,
            }
            for reading in snapshot.readings
        ],
        "links": [str(link) for link in find_links(gpus.open_devices())],
        "chosen": chosen.gpu.uuid,
        "unreadable": snapshot.unreadable,
    }


if __name__ == "__main__":
    sys.exit(main())
