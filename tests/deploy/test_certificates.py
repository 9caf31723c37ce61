"""What the chart's value `certificates.issuer` tells others."""

from __future__ import annotations

import pytest

from coda_cli.doctor.seen import leaves_certificates
from tests.deploy.charts import Helm, find

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(("issuer", "leaves"), [("coda", False), ("certManager", True)])
def test_doctor_knows_who_issues_the_certificates(helm: Helm, issuer: str, leaves: bool) -> None:
    operator = find(helm.render(f"certificates.issuer={issuer}"), "Deployment", "coda-operator")
    assert leaves_certificates(operator) is leaves
