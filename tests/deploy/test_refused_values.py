"""Values with which a part would end at its start, or no pod be made, are refused with a sentence."""

from __future__ import annotations

import pytest

from coda_kube.settings import ReplicaSettings
from tests.deploy.charts import Helm

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("part", ["operator", "extender"])
def test_lease_times_have_the_order_that_the_program_wants(helm: Helm, part: str) -> None:
    said = helm.refusal(f"{part}.settings.CODA_LEASE_DURATION_S=5")
    assert (
        f"{part}.settings: CODA_LEASE_RETRY_S (2) must be less than CODA_LEASE_RENEW_DEADLINE_S (6), "
        "and this less than CODA_LEASE_DURATION_S (5)."
    ) in said
    assert "CODA_LEASE_RETRY_S (6) must be less" in helm.refusal(f"{part}.settings.CODA_LEASE_RETRY_S=6")
    longer = [f"{part}.settings.CODA_LEASE_{name}_S={value}" for name, value in (("DURATION", 1000000), ("RETRY", 5))]
    assert helm.render(*longer)


def test_the_chart_knows_the_lease_times_of_the_programs(helm: Helm) -> None:
    fields = ReplicaSettings.model_fields
    for part in ("operator", "extender"):
        for name in ("duration", "renew_deadline", "retry"):
            default = fields[f"lease_{name}_s"].default
            wrong = "RETRY_S=9" if name != "retry" else "DURATION_S=1"
            said = helm.refusal(f"{part}.settings.CODA_LEASE_{wrong}")
            assert f"CODA_LEASE_{name.upper()}_S ({default:g})" in said


def test_two_ports_of_a_pod_differ(helm: Helm) -> None:
    said = helm.refusal("extender.port=9091")
    assert "extender.port and extender.metricsPort are both 9091; give each a number of its own." in said


@pytest.mark.parametrize("selector", ["nodeSelector", "agent.nodeSelector"])
def test_a_selector_takes_text_alone(helm: Helm, selector: str) -> None:
    path = "/" + selector.replace(".", "/")
    assert f"at '{path}/gpu': got boolean, want string" in helm.refusal(f"{selector}.gpu=true")
    assert helm.render(more=["--set-string", f"{selector}.gpu=true"])


@pytest.mark.parametrize("value", ["metrics.readers", "policies.poolAccounts"])
def test_a_service_account_has_a_namespace(helm: Helm, value: str) -> None:
    """The API server takes no binding to one without, and says so halfway through an installation."""
    account = (f"{value}[0].kind=ServiceAccount", f"{value}[0].name=prometheus")
    assert f"at '/{value.replace('.', '/')}/0': missing property 'namespace'" in helm.refusal(*account)
    assert helm.render(*account, f"{value}[0].namespace=monitoring")
    assert helm.render(f"{value}[0].kind=Group", f"{value}[0].name=sre")
