"""Quantities as apimachinery reads them: exact, capped at 2^63 - 1 units, and never smaller than asked for."""

from __future__ import annotations

import pytest

from coda.errors import InvalidQuantity
from coda.wording import amounts_text, bytes_text, quota_text
from coda_kube.objects.pod_requests import pod_amounts, resources_from_quantities
from coda_kube.objects.quantities import milli_from_quantity, whole_from_quantity
from coda_kube.objects.read import node_from_json
from coda_kube.quotas.resource_quotas import quota_from_json

MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        pytest.param("1k", 1000, id="canonical thousand"),
        pytest.param("1500m", 2, id="rounded up"),
        pytest.param("9223372036854775807", MOST, id="the most"),
        pytest.param("9223372036854775808", MOST, id="one more than the most"),
        pytest.param("8Ei", MOST, id="2^63"),
        pytest.param("1e999", MOST, id="huge exponent"),
        pytest.param("1e99999999999", MOST, id="exponent of eleven digits"),
        pytest.param("0e99999999999", 0, id="nothing, with a huge exponent"),
        pytest.param("1e-99999999999", 1, id="tiny"),
        pytest.param("9" * 3000, MOST, id="3000 digits"),
        pytest.param("9" * 6000, MOST, id="more digits than int() takes"),
        pytest.param("0." + "0" * 6000 + "1", 1, id="6000 decimals"),
        pytest.param(2**70, MOST, id="a number in JSON"),
        pytest.param(1e300, MOST, id="a float in JSON"),
    ],
)
def test_a_quantity_is_capped_as_the_api_server_does(text: str | int | float, whole: int) -> None:
    assert whole_from_quantity(text) == whole
    assert milli_from_quantity(text) <= MOST * 1000


@pytest.mark.parametrize("text", ["", "1.2.3", "0x10", "1e", "NaN", "inf", "1 Gi", "١", None, True, [], float("inf")])
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(InvalidQuantity):
        whole_from_quantity(text)  # type: ignore[arg-type]


def test_the_words_of_any_amount_are_short() -> None:
    huge = resources_from_quantities({"memory": "1e999", "cpu": "1e999", "example.com/x": "1e999"}, pods=1)
    assert len(amounts_text(huge * 4096)) < 200
    assert len(bytes_text(10**999)) < 40
    assert len(quota_text("limits.memory", 10**999)) < 40
    assert len(quota_text("requests.cpu", 10**999)) < 40


def test_a_node_of_a_thousand_pods_is_seen() -> None:
    """A kubelet with maxPods 1000 reports the canonical spelling `1k`."""
    node = node_from_json({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8", "pods": "1k"}}})
    assert node.allocatable.pods == 1000


def test_a_broken_kubelets_amounts_count_as_nothing() -> None:
    status = {"allocatable": {"cpu": "-8", "pods": "many", "memory": "1Gi", "nvidia.com/gpu": "-1"}}
    node = node_from_json({"metadata": {"name": "n"}, "status": status})
    assert (node.allocatable.cpu_m, node.allocatable.pods, node.allocatable.gpus) == (0, 0, 0)
    assert node.allocatable.memory_bytes == 2**30


def test_a_pod_never_gives_capacity_back() -> None:
    container = {"name": "main", "resources": {"requests": {"cpu": "-4", "memory": "1e999"}}}
    assert pod_amounts({"spec": {"containers": [container]}}) == {"cpu": 0, "memory": MOST}


def test_a_quota_that_cannot_be_counted_limits_nothing_else() -> None:
    quota = quota_from_json(
        {
            "metadata": {"namespace": "team", "name": "q"},
            "spec": {"hard": {"requests.memory": "1e999", "requests.cpu": "4", "pods": "-1", "weird": "x"}},
            "status": {"used": {"requests.cpu": "oops"}},
        }
    )
    assert quota is not None
    assert quota.hard == {"requests.memory": MOST * 1000, "requests.cpu": 4000, "pods": 0}
    assert quota.used == {}
