from __future__ import annotations

from collections.abc import Mapping

import pytest

from coda.contention.measurements import STALE_S, bandwidth_shares, sockets_of

PEAKS = {1: 200.0, 0: 100.0}


@pytest.mark.parametrize(
    ("bytes_per_s", "pods_age_s", "expected"),
    [
        pytest.param({0: 50.0, 1: 50.0}, 0.0, {0: 0.5, 1: 0.25}, id="bandwidth over peak"),
        pytest.param({0: 50.0, 1: None}, 0.0, {0: 0.5, 1: None}, id="a socket without a sample has no share"),
        pytest.param({0: 50.0, 7: 50.0}, 0.0, {0: 0.5, 1: None}, id="only sockets with a peak count"),
        pytest.param({0: 50.0, 1: 50.0}, STALE_S, {0: 0.5, 1: 0.25}, id="a list of pods may be this old"),
        pytest.param({0: 50.0, 1: 50.0}, STALE_S + 0.1, {0: None, 1: None}, id="with a stale one nothing counts"),
        pytest.param({0: 50.0, 1: 50.0}, float("inf"), {0: None, 1: None}, id="as before the first list"),
    ],
)
def test_a_share_needs_a_sample_a_peak_and_pods_that_are_known(
    bytes_per_s: Mapping[int, float | None], pods_age_s: float, expected: Mapping[int, float | None]
) -> None:
    shares = bandwidth_shares(bytes_per_s, PEAKS, pods_age_s=pods_age_s)
    assert list(shares.items()) == list(expected.items())


@pytest.mark.parametrize(
    ("bytes_per_s", "expected"),
    [
        pytest.param({}, {0, 1}, id="all while no traffic is known"),
        pytest.param({0: 0.0, 1: 0.0}, {0, 1}, id="all while there is none"),
        pytest.param({0: 95.0, 1: 5.0}, {0, 1}, id="a twentieth of the traffic is enough"),
        pytest.param({0: 96.0, 1: 4.0}, {0}, id="less is not"),
    ],
)
def test_a_pod_works_on_the_sockets_that_have_its_traffic(bytes_per_s: Mapping[int, float], expected: set[int]) -> None:
    assert sockets_of(bytes_per_s, (0, 1)) == expected
