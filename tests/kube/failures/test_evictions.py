"""Whose use a kubelet blames as it evicts a pod. The messages are of real nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda_kube.failures.evictions import overuse_of

DISK = "The node was low on resource: ephemeral-storage. Threshold quantity: {}, available: {}. "
MEMORY = "The node was low on resource: memory. Threshold quantity: {}, available: {}. "
USED = "Container {} was using {}, request is {}, has larger consumption of {}. "


@pytest.mark.parametrize(
    ("message", "overuse"),
    [
        pytest.param(
            DISK.format("100Gi", "90Gi") + USED.format("main", "1700Gi", "0", "ephemeral-storage"),
            "ephemeral-storage",
            id="it filled the disk",
        ),
        pytest.param(
            DISK.format("46993491787", "45494108Ki") + USED.format("main", "108Ki", "0", "ephemeral-storage"),
            "",
            id="a bit of disk that nobody asked for",
        ),
        pytest.param(
            MEMORY.format("100Mi", "91244Ki") + USED.format("main", "1843Mi", "256Mi", "memory"),
            "memory",
            id="more memory than it asked for",
        ),
        pytest.param(
            MEMORY.format("12Gi", "12536420Ki") + USED.format("main", "788244Ki", "128M", "memory"),
            "",
            id="more, but no more than the node keeps free",
        ),
        pytest.param(
            DISK.format("16015370671", "13389604Ki")
            + USED.format("proxy", "900Gi", "0", "ephemeral-storage")
            + USED.format("main", "60Ki", "0", "ephemeral-storage"),
            "",
            id="another container of the pod",
        ),
        pytest.param(
            DISK.format("16015370671", "13389604Ki")
            + USED.format("proxy", "60Ki", "0", "ephemeral-storage")
            + USED.format("main", "90.5Gi", "10Gi", "ephemeral-storage"),
            "ephemeral-storage",
            id="not the first container that is named",
        ),
        pytest.param(DISK.format("100Gi", "90Gi"), "", id="it used no more than it asked for"),
        pytest.param("The node was low on resource: inodes. ", "", id="another resource"),
        pytest.param(
            "The node was low on resource: memory. Container main was using 3256Ki, which exceeds its request of 0. ",
            "",
            id="an old kubelet says too little",
        ),
        pytest.param(
            DISK.format("1..2Gi", "0") + USED.format("main", "1.2.3Xx", "0", "ephemeral-storage"), "", id="no numbers"
        ),
    ],
)
def test_the_main_container_is_blamed_for_what_explains_the_want(message: str, overuse: str) -> None:
    assert overuse_of({"reason": "Evicted", "message": message}, "main") == overuse


def test_other_ends_blame_nobody() -> None:
    message = DISK.format("1Gi", "0") + USED.format("main", "9Gi", "0", "ephemeral-storage")
    assert overuse_of({"reason": "Terminated", "message": message}, "main") == ""
    assert overuse_of({}, "main") == ""


@given(st.text(max_size=300), st.text(alphabet="0123456789.KMGi", max_size=8))
def test_no_message_is_an_error(tail: str, amount: str) -> None:
    message = DISK.format(amount, amount) + USED.format("main", amount, amount, "ephemeral-storage") + tail
    assert overuse_of({"reason": "Evicted", "message": message}, "main") in ("", "ephemeral-storage")
