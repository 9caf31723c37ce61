from __future__ import annotations

import pytest

from coda.errors import CodaError
from coda_kube.objects.names import POOL_TAINT
from coda_lab.kubelets.nodes import is_ready, lease_json, node_json, node_specs


def test_shapes_become_nodes_in_contiguous_racks() -> None:
    specs = node_specs("3x8x48,2x4x28", racks=2)
    assert [(spec.name, spec.rack, spec.gpus, spec.cpus) for spec in specs] == [
        ("node-0000", "rack-0", 8, 48),
        ("node-0001", "rack-0", 8, 48),
        ("node-0002", "rack-0", 8, 48),
        ("node-0003", "rack-1", 4, 28),
        ("node-0004", "rack-1", 4, 28),
    ]


def test_five_thousand_names_sort_as_they_count() -> None:
    names = [spec.name for spec in node_specs("5000x8x48", racks=20)]
    assert names == sorted(names)
    assert len(set(names)) == 5000


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("8x8", {}, id="two numbers"),
        pytest.param("0x8x48", {}, id="no nodes"),
        pytest.param("1x8x0", {}, id="no cores"),
        pytest.param("-1x8x48", {}, id="negative"),
        pytest.param("4000x8x48,1001x8x48", {}, id="more than 5000"),
        pytest.param("2x8x48", {"racks": 3}, id="more racks than nodes"),
        pytest.param("2x8x48", {"racks": 0}, id="no racks"),
        pytest.param("2x8x48", {"prefix": "Node_"}, id="a prefix that is no DNS label"),
        pytest.param("2x8x48", {"memory": "0"}, id="no memory"),
        pytest.param("2x8x48", {"memory": "much"}, id="memory that is no quantity"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(shapes: str, options: dict[str, str | int]) -> None:
    with pytest.raises(CodaError) as caught:
        node_specs(shapes, **{"racks": 1, **options})  # type: ignore[arg-type]  # options of several types
    assert "\n" not in str(caught.value)


def test_a_node_registers_ready_with_its_port_and_labels() -> None:
    (spec,) = node_specs("1x8x48", racks=1, is_tainted=True)
    node = node_json(spec, port=10250, version="v1.36.3", now_s=0.0)
    assert is_ready(node)
    assert node["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert node["spec"]["taints"] == [{"key": POOL_TAINT, "effect": "NoSchedule"}]
    assert node["metadata"]["labels"]["topology.coda.scheduler/rack"] == "rack-0"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "node-0000"
    assert node["metadata"]["labels"]["local.coda.scheduler/simulated"] == "true"


def test_an_untainted_node_leaves_the_taints_to_others() -> None:
    (spec,) = node_specs("1x8x48", racks=1)
    assert "spec" not in node_json(spec, port=1, version="v1", now_s=0.0)


def test_the_lease_goes_with_its_node() -> None:
    lease = lease_json({"metadata": {"name": "node-0000", "uid": "u"}}, duration_s=40.0, now_s=0.0)
    assert lease["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert lease["spec"] == {
        "holderIdentity": "node-0000",
        "leaseDurationSeconds": 40,
        "renewTime": "1970-01-01T00:00:00.000000Z",
    }
