"""How soon Coda's own pods leave a node that is away."""

from __future__ import annotations

import pytest

from tests.deploy.charts import Helm, Json, pod_of

pytestmark = pytest.mark.e2e

LEAVES = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
AWAY = [{"key": f"node.kubernetes.io/{taint}", **LEAVES} for taint in ("not-ready", "unreachable")]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((), AWAY),
        (("tolerations[0].key=a",), [{"key": "a"}, *AWAY]),
        (("tolerations[0].operator=Exists",), [{"operator": "Exists"}]),
        (
            ("tolerations[0].operator=Exists", "tolerations[0].effect=NoSchedule"),  # such pods leave, too
            [{"operator": "Exists", "effect": "NoSchedule"}, *AWAY],
        ),
        (
            (f"tolerations[0].key={AWAY[1]['key']}", "tolerations[0].tolerationSeconds=120"),
            [{"key": AWAY[1]["key"], "tolerationSeconds": 120}, AWAY[0]],
        ),
    ],
)
def test_no_part_waits_five_minutes_on_a_node_that_is_away(helm: Helm, values: tuple[str, ...], expected: Json) -> None:
    items = helm.render(*values)
    for part in ("operator", "extender", "scheduler"):
        assert pod_of(items, part)["spec"]["tolerations"] == expected
