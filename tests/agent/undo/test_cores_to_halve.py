"""Of how many cores a throttle takes half."""

from __future__ import annotations

import pytest

from coda.contention import Hardware
from coda_agent.cgroups.usage import CpuRates
from coda_agent.cluster import LocalPod
from coda_agent.gpus import LibraryState, Moment, Snapshot
from coda_agent.resctrl import MemoryTraffic
from coda_agent.sensor import Senses
from coda_agent.throttling.window import window_from

UID = "0a1b2c3d-1111-4222-8333-444455556666"


@pytest.mark.parametrize(
    ("limit", "used", "throttled", "cores"),
    [
        pytest.param(8.0, 3.0, 0.0, 8.0, id="its limit"),
        pytest.param(8.0, 60.0, 0.0, 60.0, id="what it uses where the kubelet enforces no limits"),
        pytest.param(None, 12.0, 0.0, 12.0, id="what it uses without a limit"),
        pytest.param(8.0, None, 0.0, 8.0, id="its use is not measured"),
        pytest.param(8.0, 8.4, 0.0, 8.0, id="a reading that came a little late"),
        pytest.param(8.0, 16.5, 0.1, 8.0, id="one that came very late of a limit that holds it"),
    ],
)
def test_a_pod_has_the_cores_that_it_may_use_or_does(
    limit: float | None, used: float | None, throttled: float, cores: float
) -> None:
    pod = LocalPod(
        uid=UID,
        namespace="default",
        name="other",
        runs=True,
        ended=False,
        gpus=0,
        request_cores=2.0,
        limit_cores=limit,
        quality="Burstable",
        member=None,
    )
    senses = Senses(
        at=Moment(monotonic_s=1.0, wall_s=1.0, node_wall_s=1.0),
        gpus=Snapshot(at_s=1.0, library=LibraryState.ABSENT),
        traffic=MemoryTraffic(by_pod={UID: {0: 60e9}}, totals={0: 90e9}),
        cpu_by_pod={} if used is None else {UID: CpuRates(cores=used, throttled_share=throttled)},
    )
    window = window_from(senses, (pod,), Hardware(peak_bytes_per_s={0: 100e9}), 0.0)
    assert [sample.cores for sample in window.pods] == [cores]
