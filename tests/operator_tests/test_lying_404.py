"""A 404 that is not about the object: of one API server of several, or of a balancer that reloads."""

from __future__ import annotations

import asyncio

from coda_kube.api.client import error_from_answer
from tests.extender.fake_api import Call
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches


async def test_a_job_that_is_said_to_be_unknown_while_its_ranks_end_is_not_forgotten() -> None:
    """It would be Running for ever, and its pods would be held by our finalizer."""
    api, is_away, met = FakeCluster(), False, 0

    def before(call: Call) -> None:
        nonlocal met
        if is_away and "trainingjobs/" in call.path:
            met += 1
            raise error_from_answer(404, "404 page not found\n")

    api.before = before
    async with rest_of_cluster(api, run_s=lambda attempt, rank: 100.0), operator(api):
        job = api.submit()
        await reaches(api, job, "Running")
        await asyncio.sleep(95)
        is_away = True
        await asyncio.sleep(10)
        is_away = False
        assert met
        await reaches(api, job, "Succeeded")
