import pytest

from coda.errors import InvalidInput
from coda.model.job import LocalityStep
from coda.policy import Level
from coda_extender.settings import read_settings
from coda_kube.api.watch_cache import IDLE_TIMEOUT_S


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("CODA_")]:
        monkeypatch.delenv(name)


def test_defaults_need_nothing() -> None:
    settings = read_settings()
    assert (settings.port, settings.scheduler_names, settings.body_limit_bytes) == (8888, ("coda",), 3145728)
    assert settings.policy().levels[0] == Level("rack", "topology.coda.scheduler/rack")
    assert settings.lease_times().duration_s == 10.0


def test_a_pod_is_in_flight_for_longer_than_a_dead_watch_goes_unnoticed() -> None:
    """Its bind may be unseen until then; afterwards nothing is decided before it is."""
    assert read_settings().in_flight_limit_s > IDLE_TIMEOUT_S


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODA_SCHEDULER_NAMES", "coda, default-scheduler")
    monkeypatch.setenv("CODA_TOPOLOGY_LEVELS", "zone=example.com/zone,node=kubernetes.io/hostname")
    monkeypatch.setenv("CODA_LOCALITY", "node=60,zone=300")
    monkeypatch.setenv("CODA_SCHEDULING_POLICY", "drf-multi")
    settings = read_settings()
    assert settings.policy().policy == "drf-multi"
    assert settings.scheduler_names == ("coda", "default-scheduler")
    assert settings.policy().levels == (Level("zone", "example.com/zone"), Level("node", "kubernetes.io/hostname"))
    assert settings.policy().locality == (LocalityStep("node", 60.0), LocalityStep("zone", 300.0))


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("CODA_PORT", "70000", "CODA_PORT"),
        ("CODA_LOG_LEVEL", "loud", "CODA_LOG_LEVEL"),
        ("CODA_TOPOLOGY_LEVELS", "rack", "name=label"),
        ("CODA_LOCALITY", "rack", "level=seconds"),
        ("CODA_LOCALITY", "moon=60", "must name topology levels"),
        ("CODA_SPREAD_COST", "2", "CODA_SPREAD_COST"),
        ("CODA_TOPOLOGY_LEVELS", "rack=a,rack=b", "different names"),
        ("CODA_LEASE_RENEW_DEADLINE_S", "11", "renew deadline < duration"),
        ("CODA_BIND_DEADLINE_S", "0", "CODA_BIND_DEADLINE_S"),
        ("CODA_IN_FLIGHT_LIMIT_S", "39", "CODA_IN_FLIGHT_LIMIT_S: .*40"),
        ("CODA_SCHEDULING_POLICY", "lottery", "no policy: choose one of"),
        ("CODA_SCHEDULING_POLICY", "srtf", "stops jobs by how long they ran"),
        ("CODA_SCHEDULING_POLICY", "synergy-tune", "sets the cores of jobs by a rule of its own"),
    ],
)
def test_bad_values_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str, word: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=word):
        read_settings()
