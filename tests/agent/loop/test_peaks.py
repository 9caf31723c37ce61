"""What traffic shows about a peak bandwidth that was only computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from coda_agent.bandwidth.peak import PeakSource
from tests.agent.bandwidth.test_peak import module
from tests.agent.loop.conftest import MakeRig


async def test_traffic_that_the_memory_could_not_move_shows_that_its_table_was_misread(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    """Four channels whose names look like two: the peak is never again below what was seen."""
    folder = tmp_path / "sys/firmware/dmi/tables"
    folder.mkdir(parents=True)
    (folder / "DMI").write_bytes(b"".join(module(name) for name in ("A1", "A2", "B1", "B2")))
    rig = make_rig(peak_gb_per_s={}, calibrate=False)
    believed = rig.agent.peak
    assert believed is not None
    assert believed.bytes_per_s == pytest.approx({0: 20.48e9, 1: 20.48e9})
    busy = rig.node.start("busy", cores=8, gb_per_s=40.0)
    await rig.run(20)
    busy.bytes_per_s = 1e9
    await rig.run(120)
    rig.agent.learn_peak({0: 1e9, 1: 0.0}, 1e6)  # long afterwards
    peak = rig.agent.peak
    assert peak is not None
    assert peak.source is PeakSource.THEORETICAL
    assert peak.bytes_per_s == pytest.approx({0: 40e9, 1: 20.48e9}, rel=0.05)
