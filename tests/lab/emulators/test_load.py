"""What load does to a machine."""

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda_lab.emulators.load import Gpus, Load, Supply, Trainer, core_cap, serve, utilisation

loads = st.lists(
    st.builds(
        Load,
        name=st.just(""),
        domain=st.integers(0, 1),
        cores=st.floats(0, 64),
        bytes_per_s=st.floats(0, 500),
        dma_bytes_per_s=st.floats(0, 50),
        limit_group=st.sampled_from(["a", "b"]),
        core_group=st.sampled_from([None, "x"]),
    ),
    max_size=6,
).map(lambda found: [replace(one, name=str(index)) for index, one in enumerate(found)])


@given(loads, st.floats(1, 100))
def test_nobody_gets_more_than_he_wants_and_no_domain_more_than_its_peak(found: list[Load], percent: float) -> None:
    supply = Supply(peak_bytes_per_s=300, core_bytes_per_s=10, percents={("a", 0): percent})
    served = serve(found, supply)
    assert all(0 <= served.bytes_per_s[load.name] <= load.bytes_per_s * (1 + 1e-9) for load in found)
    for domain in (0, 1):
        assert sum(served.bytes_per_s[load.name] for load in found if load.domain == domain) <= 300 * (1 + 1e-9)


def test_a_percentage_costs_more_than_its_part_down_to_a_knee() -> None:
    caps = [core_cap(percent, 100) for percent in (100, 50, 20, 10, 1)]
    assert caps[0] == 100
    assert caps[1] < 50
    assert caps[3] == caps[4] > 0


def test_the_same_percentage_leaves_more_to_more_cores() -> None:
    supply = Supply(peak_bytes_per_s=1000, core_bytes_per_s=10, percents={("", 0): 50})
    few, many = (serve([Load(name="x", domain=0, cores=n, bytes_per_s=500)], supply).bytes_per_s["x"] for n in (4, 16))
    assert many == pytest.approx(4 * few)


@pytest.mark.parametrize(("share", "is_slowed"), [(True, True), (False, False)])
def test_siblings_share_the_lower_percentage_only_in_mode_max(share: bool, is_slowed: bool) -> None:
    pair = [
        Load(name="train", domain=0, cores=2, bytes_per_s=20, core_group="c"),
        Load(name="cpu", domain=0, cores=2, bytes_per_s=20, core_group="c", limit_group="g"),
    ]
    supply = Supply(peak_bytes_per_s=99, core_bytes_per_s=10, percents={("g", 0): 50}, siblings_share=share)
    assert (serve(pair, supply).bytes_per_s["train"] < 20) is is_slowed


def test_gpus_are_busy_by_cores_and_bandwidth_together() -> None:
    trainer = Trainer(best=0.9, cores_needed=6)
    assert utilisation(trainer, 6, 1) == utilisation(trainer, 12, 1) == 0.9
    assert utilisation(trainer, 3, 1) == pytest.approx(0.45)
    assert utilisation(trainer, 3, 0.5) == pytest.approx(0.225)


def test_gpus_show_what_the_period_before_allowed() -> None:
    gpus = Gpus(Trainer(best=0.8, cores_needed=4), seed=1)
    assert [gpus.period(cores, 1) for cores in (4, 2, 2)] == [0.8, 0.8, 0.4]


def test_noise_is_the_seeds_and_as_large_as_asked() -> None:
    def samples(seed: int) -> list[float]:
        gpus = Gpus(Trainer(best=0.5, noise=0.03), seed)
        return [gpus.period(4, 1) for _ in range(2000)]

    assert samples(7) == samples(7) != samples(8)
    assert statistics.pstdev(samples(7)) / 0.5 == pytest.approx(0.03, rel=0.1)
