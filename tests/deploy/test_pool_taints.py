"""The taints of GPU nodes beside the pool's own: who is told to tolerate them."""

from __future__ import annotations

import json

import pytest

from tests.deploy.charts import Helm, environ_of, find

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ((), ["nvidia.com/gpu"]),
        (("pool.taints={sku,example.com/gpus}",), ["sku", "example.com/gpus"]),
        (("pool.taints=null",), []),
    ],
)
def test_cpu_jobs_and_ranks_without_a_gpu_tolerate_them(helm: Helm, values: tuple[str, ...], keys: list[str]) -> None:
    items = helm.render("cpuJobs.enabled=true", *values)
    (variable,) = find(items, "MutatingAdmissionPolicy", "coda-cpu-jobs")["spec"]["variables"]
    assert json.loads(variable["expression"]) == ["coda.scheduler/pool", *keys]
    assert environ_of(items, "operator")["CODA_POOL_TAINTS"] == ",".join(keys)


@pytest.mark.parametrize("key", ["coda.scheduler/trials", "node.kubernetes.io/unschedulable", "a'b"])
def test_a_taint_that_says_something_else_is_refused(helm: Helm, key: str) -> None:
    assert "at '/pool/taints/0'" in helm.refusal(f"pool.taints={{{key}}}")
