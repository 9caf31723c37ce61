"""What processes say is judged: anything may come."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.errors import InvalidInput
from coda.sharing.memory_limits import MemoryControl
from coda_agent.sharing.messages import MOST_BYTES, Message, message_from

GPU = {"gpu": "GPU-1", "device": 5, "host": 1, "reserve": 9, "floor": 3, "refusals": 0}


def packet(**fields: object) -> bytes:
    return json.dumps({"v": 1, "type": "steps", **fields}).encode()


def test_a_report_is_read() -> None:
    message = message_from(packet(control="step", s=[0.5, 1], count=7, gpus=[GPU], news="unknown"))
    assert message is not None
    assert (message.control, message.steps, message.count) == (MemoryControl.FULL, (0.5, 1.0), 7)
    assert message.gpus is not None
    assert message.gpus[0].reserve_bytes == 9


def test_a_report_about_64_gpus_of_a_long_run_is_short_enough() -> None:
    """As `coda_torch.job` writes it, on cards of 300 GB that have been busy for a month."""
    sizes = dict.fromkeys(("device", "host", "reserve", "floor"), 300 * 10**9)
    times = dict.fromkeys(("busy_ns", "idle_ns"), 30 * 86400 * 10**9)
    gpus = [{"gpu": f"GPU-{number:032x}-----", **sizes, "refusals": 1000, **times} for number in range(64)]
    words = {"v": 1, "type": "steps", "seq": 10**7, "count": 10**8, "s": [0.123456] * 10, "control": "fraction"}
    message = message_from(json.dumps({**words, "launches": 10**12, "gpus": gpus}, separators=(",", ":")).encode())
    assert message is not None
    assert message.gpus is not None
    assert len(message.gpus) == 64


@pytest.mark.parametrize("words", [b'{"v":2,"type":"steps"}', b'{"v":1,"type":"song"}', b'{"v":1}', b"{}"])
def test_what_a_newer_version_says_is_skipped(words: bytes) -> None:
    assert message_from(words) is None


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"v":1,"type":"st', id="half"),
        pytest.param(b"[" * 16000, id="deep"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"17", id="a number"),
        pytest.param(b" " * (MOST_BYTES + 1), id="huge"),
        pytest.param(packet(s=[1.0] * 11), id="too many steps"),
        pytest.param(packet(s=[-1]), id="negative time"),
        pytest.param(packet(s=[1e99]), id="endless step"),
        pytest.param(b'{"v":1,"type":"steps","s":[NaN]}', id="no number"),
        pytest.param(b'{"v":1,"type":"steps","s":[%d]}' % 10**400, id="a step of 400 digits"),
        pytest.param(packet(s=[True]), id="no duration"),
        pytest.param(packet(count=-1), id="negative count"),
        pytest.param(packet(count=2**63), id="endless count"),
        pytest.param(packet(gpus=[{**GPU, "device": 1.5}]), id="half a byte"),
        pytest.param(packet(gpus=[{**GPU, "gpu": "x" * 65}]), id="long uuid"),
        pytest.param(packet(gpus=[GPU] * 65), id="too many GPUs"),
        pytest.param(packet(gpus={"a": 1}), id="no list"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(words: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        message_from(words)
    assert len(str(refused.value)) < 120


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["v", "type", "s", "gpus", "gpu", "device", "count"]), inner, max_size=4)
        ),
        max_leaves=10,
    )
)
def test_no_json_does_harm(value: object) -> None:
    framed = {"v": 1, "type": "steps", **value} if isinstance(value, dict) else value
    try:
        message = message_from(json.dumps(framed).encode())
    except InvalidInput:
        return
    assert message is None or isinstance(message, Message)
